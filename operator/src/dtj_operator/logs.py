"""Logging: one JSON object a line with the job that it concerns, or plain text for a terminal."""

from __future__ import annotations

import contextvars
import datetime
import json
import logging
import sys
from typing import Literal

from dtj_core.plan.model import Object

# The job that the current task reconciles, so that no function has to pass it on.
_job: contextvars.ContextVar[dict[str, object] | None] = contextvars.ContextVar("job", default=None)


def set_job(namespace: str, name: str) -> None:
    """Adds this job to every line that the current task logs from here on."""
    _job.set({"namespace": namespace, "name": name})


def set_attempt(job: Object) -> None:
    """Adds the attempt, too, once the job has been read."""
    known, attempt = _job.get(), job.get("status", {}).get("attempt")
    if known is not None and attempt is not None:
        _job.set(known | {"attempt": attempt})


def clear_job() -> None:
    """Removes the job, because its reconcile is over."""
    _job.set(None)


class JsonFormatter(logging.Formatter):
    """Formats a record as JSON.

    The keys are `time` (RFC 3339), `level`, `logger`, `message`, `job` {namespace, name, attempt},
    and `traceback` if there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        job = _job.get()
        if job is not None:
            line["job"] = job
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """Formats a record as `12:00:01 warning default/digits: message`."""

    def format(self, record: logging.LogRecord) -> str:
        job = _job.get()
        where = f" {job['namespace']}/{job['name']}:" if job is not None else ""
        clock = self.formatTime(record, "%H:%M:%S")
        line = f"{clock} {record.levelname.lower()}{where} {record.getMessage()}"
        return line + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


def _one_line(record: logging.LogRecord) -> bool:
    """Removes the traceback of kopf's own messages.

    An unavailable API server is expected. Errors of our own handlers use another logger
    (kopf.objects) and keep their traceback.
    """
    if record.name.startswith("kopf._"):
        record.exc_info = None
    return True


def set_up(form: Literal["json", "text"], level: str) -> None:
    """Sends all log lines of the process to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_one_line)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    logging.captureWarnings(capture=True)
    # At info level kopf logs a line for every handler call.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
