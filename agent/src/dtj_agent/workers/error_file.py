"""The last exception of a worker, as torch's `@record` writes it to TORCHELASTIC_ERROR_FILE, wherever stderr goes.

The worker controls the file, so its type, its size and every value in it are checked before any of
it is used.
"""

from __future__ import annotations

import json
import os
import stat
from typing import Any, Dict, NamedTuple, Optional

from dtj_agent.group.diagnosis import headline
from dtj_contract import names

MAX_BYTES = 64 * 1024
MAX_MESSAGE = 300


class RecordedError(NamedTuple):
    """`message` is one line; `traceback` may be empty."""

    message: str
    traceback: str


def read(path: str) -> Optional[RecordedError]:
    """Returns the error in the file; None if there is no file, or it is not in torch's format."""
    try:
        # The worker may have put a pipe or a link there: don't wait for a pipe, and don't follow a
        # link.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        data = os.read(descriptor, MAX_BYTES + 1)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return parse(data) if len(data) <= MAX_BYTES else None


def parse(data: bytes) -> Optional[RecordedError]:
    """Parses torch's error file format: {"message": {"message": ..., "extraInfo": {"py_callstack": ...}}}."""
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError):
        return None
    outer = _object(raw).get("message")
    inner = _object(outer)
    message = inner.get("message") if inner else outer
    if not isinstance(message, str) or not message.strip():
        return None
    traceback = _object(inner.get("extraInfo")).get("py_callstack")
    return RecordedError(
        _clean(headline(message.strip().splitlines()))[:MAX_MESSAGE],
        _clean(traceback)[-names.LOG_TAIL_BYTES :] if isinstance(traceback, str) else "",
    )


def _clean(text: str) -> str:
    """Returns text that UTF-8 can hold, because JSON may escape half a surrogate pair."""
    return text.encode("utf-8", "replace").decode()


def _object(value: Any) -> Dict[str, Any]:
    return value if isinstance(value, dict) else {}
