"""The error file that torch writes for a worker: read, bounded, and ignored if it is none."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from dtj_agent.warm import script
from dtj_agent.workers import error_file
from dtj_contract import names

TRACEBACK = 'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    main()\n'


def record(message: Any, traceback: Any = "", **outer: Any) -> bytes:
    return json.dumps(
        {"message": {"message": message, "extraInfo": {"py_callstack": traceback, "timestamp": "1"}}, **outer}
    ).encode()


def test_recorded_exception_is_read_with_its_traceback(tmp_path: Path) -> None:
    path = tmp_path / "error-0.json"
    path.write_bytes(record("ValueError: boom\nmore", TRACEBACK))
    assert error_file.read(str(path)) == ("ValueError: boom", TRACEBACK)
    path.write_bytes(record("ImportError: \n\nX requires Y.\nInstall Y."))
    assert error_file.read(str(path)) == ("ImportError: X requires Y.", "")
    path.write_text('{"message": "ValueError: boom"}')
    assert error_file.read(str(path)) == ("ValueError: boom", "")


HOSTILE = {
    "nothing": b"",
    "no JSON": b"{",
    "deep": b"[" * 60000,
    "a list": b"[1]",
    "no message": b"{}",
    "a message that is a number": b'{"message": 3}',
    "an inner message that is a list": record([1]),
    "an empty message": record("  \n"),
    "too much": record("x" * error_file.MAX_BYTES),
    "bytes": bytes(range(256)),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_error_file_with_hostile_content_is_ignored(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "e").write_bytes(data)
    assert error_file.read(str(tmp_path / "e")) is None


def test_error_file_that_is_no_file_is_ignored_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "real").write_bytes(record("ValueError: boom"))
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert [error_file.read(str(tmp_path / name)) for name in ("pipe", "folder", "link", "none")] == [None] * 4


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have notes since Python 3.11")
def test_error_of_a_warm_worker_is_recorded_without_its_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "error-0.json")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", path)
    error = ModuleNotFoundError("No module named 'x'")
    error.add_note("while loading shard 3\nof 8")
    script._record(error)
    assert error_file.read(path) == ("ModuleNotFoundError: No module named 'x'", ANY)


def test_recorded_exception_is_bounded_text() -> None:
    found = error_file.parse(record("\ud800" + "x" * 5000, "y" * 5000))
    assert found is not None
    assert len(found.message) == error_file.MAX_MESSAGE
    assert len(found.traceback) == names.LOG_TAIL_BYTES
    found.message.encode()
