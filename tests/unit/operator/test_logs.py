"""The log formats."""

from __future__ import annotations

import json
import logging

from dtj_operator import logs
from tests.unit.operator.fakes import job


def test_log_line_is_one_json_object_with_job_and_attempt() -> None:
    record = logging.LogRecord("dtj", logging.WARNING, "f", 1, "two\nlines: %s", ("x",), None)
    logs.set_job("ns", "j")
    logs.set_attempt(job({"attempt": 3}))
    line = logs.JsonFormatter().format(record)
    assert "\n" not in line
    logged = json.loads(line)
    assert (logged["level"], logged["message"], logged["job"]) == (
        "warning",
        "two\nlines: x",
        {"namespace": "ns", "name": "j", "attempt": 3},
    )
    assert "ns/j: two" in logs.TextFormatter().format(record)
    logs.clear_job()
    assert "job" not in json.loads(logs.JsonFormatter().format(record))
