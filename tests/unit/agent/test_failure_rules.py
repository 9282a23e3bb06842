"""Which failures end a job at once, which are tried a few times, and which are never held against it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dtj_agent.group.failure_rules import diagnose
from dtj_agent.group.member import WorkerExit
from dtj_agent.workers import error_file
from dtj_contract import names
from tests.unit.agent.coordinator_harness import CoordinatorHarness

TRACEBACK = 'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    main()\n'
HANDLED = TRACEBACK + "ModuleNotFoundError: No module named 'flash_attn'\nwithout flash attention\nepoch 1\n"
USAGE = "usage: t.py [-h] --lr LR\n"

AT_ONCE = {
    "a syntax error": (
        1,
        '  File "t.py", line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax\n',
        "ScriptError",
    ),
    "an indentation error": (1, '  File "t.py", line 2\nIndentationError: unexpected indent\n', "ScriptError"),
    "a tab error": (1, "TabError: inconsistent use of tabs and spaces in indentation", "ScriptError"),
    "a name error": (
        1,
        TRACEBACK + "NameError: name 'optmizer' is not defined. Did you mean: 'optimizer'?\n",
        "ScriptError",
    ),
    "a breakpoint": (1, "> t.py(1)<module>()\n(Pdb) \n" + TRACEBACK + "bdb.BdbQuit\n", "ScriptError"),
    "behind torch's prefix": (1, f"[rank1]: {TRACEBACK}[rank1]: NameError: name 'x' is not defined\n", "ScriptError"),
    "before torch's last log": (
        1,
        TRACEBACK
        + "NameError: name 'x' is not defined\n[W1122 10:00:00.1 ProcessGroupNCCL.cpp:1] WARNING: not destroyed\n",
        "ScriptError",
    ),
    "a wrong flag": (2, USAGE + "t.py: error: unrecognized arguments: --lrr 1\n", "UsageError"),
    "a flag without its value": (2, USAGE + "t.py: error: argument --lr: expected one argument\n", "UsageError"),
    "a usage longer than the tail": (
        2,
        "  --a A\nt.py: error: the following arguments are required: --lr\n",
        "UsageError",
    ),
    "a wrong subcommand": (2, "usage: t.py train [-h]\nt.py train: error: ambiguous option: --l\n", "UsageError"),
    "click": (2, "Usage: t.py [OPTIONS]\nTry 't.py --help' for help.\n\nError: No such option: --lrr\n", "UsageError"),
    "an import": (1, TRACEBACK + "ImportError: cannot import name 'x' from 'y'\n", "ImportFailed"),
}


@pytest.mark.parametrize(("code", "tail", "reason"), AT_ONCE.values(), ids=AT_ONCE)
def test_what_no_other_attempt_would_cure_is_permanent(code: int, tail: str, reason: str) -> None:
    found = diagnose(3, code, tail, False, progressed=False)
    assert (found.reason, found.permanent) == (reason, True)
    evidence = [line for line in tail.splitlines() if "rror" in line or "Quit" in line][-1].replace("[rank1]: ", "")
    assert evidence.strip() in found.message


@pytest.mark.parametrize(("code", "tail", "reason"), AT_ONCE.values(), ids=AT_ONCE)
def test_the_same_after_progress_is_tried_again(code: int, tail: str, reason: str) -> None:
    assert diagnose(3, code, tail, False, progressed=True).reason == "WorkerFailed"


TRIED_AGAIN = {
    "an import that was handled": (1, HANDLED),
    "a name error that was logged": (1, TRACEBACK + "NameError: name 'x' is not defined\nretrying\n"),
    "an import's line with another exit code": (7, TRACEBACK + "ImportError: x\n"),
    "exit 2 without usage": (2, "t.py: error: the server is gone\n"),
    "exit 2 of make": (2, "make: *** [all] Error 2\n"),
    "usage with exit 1": (1, USAGE + "t.py: error: unrecognized arguments: --x\n"),
    "a name error's kin": (1, TRACEBACK + "UnboundLocalError: cannot access local variable 'x'\n"),
    "a value error": (1, TRACEBACK + "ValueError: x\n"),
    "nothing said": (1, ""),
}


@pytest.mark.parametrize(("code", "tail"), TRIED_AGAIN.values(), ids=TRIED_AGAIN)
def test_what_another_attempt_may_cure_is_not_permanent(code: int, tail: str) -> None:
    found = diagnose(3, code, tail, False, progressed=False)
    assert (found.reason, found.permanent) == ("WorkerFailed", False)


# --- what an attempt's age shows ------------------------------------------------------------------------------------------


def running() -> CoordinatorHarness:
    harness = CoordinatorHarness(1, max_restarts=20)
    harness.running()
    return harness


def fail(harness: CoordinatorHarness, tail: str, after: float, exit_code: int = 1) -> None:
    attempt = harness.coordinator.history.attempt
    harness.time += after
    harness.fail(0, exit_code, tail, attempt=attempt)
    harness.stopped(0, attempt=attempt)
    while harness.coordinator.outcome is None and harness.coordinator.history.attempt == attempt:
        harness.wait(1)


IMPORT = TRACEBACK + "ModuleNotFoundError: No module named 'flash_attn'\n"


def test_an_import_error_of_an_attempt_that_lived_long_is_tried_again() -> None:
    """A plain script reports no step, so its age is what shows that it works."""
    harness = running()
    fail(harness, IMPORT, after=names.EARLY_SECONDS + 1)
    assert harness.coordinator.outcome is None
    assert harness.coordinator.history.failures[-1]["reason"] == "WorkerFailed"


def test_an_import_error_after_an_attempt_that_lived_long_is_tried_again() -> None:
    harness = running()
    fail(harness, "", after=names.EARLY_SECONDS + 1, exit_code=-9)
    fail(harness, IMPORT, after=1.0)
    assert harness.coordinator.outcome is None
    again = CoordinatorHarness(
        1, history=type(harness.coordinator.history).from_json(harness.coordinator.history.to_json())
    )
    assert again.coordinator.history.established, "a replaced pod 0 knows it too"


def test_an_import_error_at_once_ends_the_job() -> None:
    harness = running()
    fail(harness, IMPORT, after=names.EARLY_SECONDS - 1)
    assert harness.coordinator.outcome is not None
    assert harness.coordinator.outcome["reason"] == "ImportFailed"


MISSING = TRACEBACK + "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'\n"


def test_a_missing_file_is_said_first_and_tried_a_few_times() -> None:
    harness = running()
    fail(harness, MISSING, after=1.0)
    (event,) = harness.coordinator.history.events
    assert (event["type"], event["reason"]) == ("Warning", "FileNotFound")
    assert "/data/train.bin" in event["message"]
    assert "5 attempts" in event["message"]
    for _ in range(3):
        fail(harness, MISSING, after=1.0)
        assert harness.coordinator.outcome is None
    fail(harness, MISSING, after=1.0)
    final = harness.coordinator.outcome
    assert final is not None
    assert (final["reason"], final["attempt"], final["restarts"]["counted"]) == ("FileNotFound", 5, 4)
    assert "/data/train.bin" in final["message"]
    assert len(harness.coordinator.history.events) == 1


def test_a_file_that_comes_in_time_ends_the_count() -> None:
    harness = running()
    for tail in (MISSING, MISSING, MISSING, MISSING, "", MISSING, MISSING):
        fail(harness, tail, after=1.0)
    assert harness.coordinator.outcome is None


def test_a_file_that_goes_missing_in_training_is_a_failure_like_others() -> None:
    harness = running()
    for _ in range(6):
        fail(harness, MISSING, after=names.EARLY_SECONDS + 1)
    assert harness.coordinator.outcome is None
    assert {failure["reason"] for failure in harness.coordinator.history.failures} == {"WorkerFailed"}


@pytest.mark.parametrize(("lived", "leases"), [(11.0, [1, 2, 3, 4]), (9.0, [1, 2, 3])])
def test_only_attempts_that_ended_within_10_s_are_held_back(lived: float, leases: list[int]) -> None:
    """A plain script that trains for half a minute before each failure goes on at once."""
    harness = running()
    for attempt in (1, 2, 3):
        harness.time += lived
        harness.fail(0, -9, attempt=attempt)
        harness.stopped(0, attempt=attempt)
        if attempt == 2 and lived < 10:
            harness.wait(1)
    assert harness.leases == leases


def test_a_long_stop_is_no_part_of_an_attempts_life() -> None:
    harness = running()
    for attempt in (1, 2, 3):
        harness.time += 1.0
        harness.fail(0, -9, attempt=attempt)
        harness.time += 60.0  # its SIGTERM handler saves
        harness.stopped(0, attempt=attempt)
        harness.wait(1.0 if attempt == 2 else 0.0)
    assert harness.leases == [1, 2, 3], "the fourth waits"
    assert not harness.coordinator.history.established


# --- what a worker has recorded -------------------------------------------------------------------------------------------


def record(message: Any, traceback: Any = "", **outer: Any) -> bytes:
    return json.dumps(
        {"message": {"message": message, "extraInfo": {"py_callstack": traceback, "timestamp": "1"}}, **outer}
    ).encode()


def test_a_recorded_exception_is_read_with_its_traceback(tmp_path: Path) -> None:
    path = tmp_path / "error-0.json"
    path.write_bytes(record("ValueError: boom\nmore", TRACEBACK))
    assert error_file.read(str(path)) == ("ValueError: boom", TRACEBACK)
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
def test_an_error_file_that_torch_would_not_write_says_nothing(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "e").write_bytes(data)
    assert error_file.read(str(tmp_path / "e")) is None


def test_an_error_file_that_is_none_says_nothing_and_never_blocks(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "real").write_bytes(record("ValueError: boom"))
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert [error_file.read(str(tmp_path / name)) for name in ("pipe", "folder", "link", "none")] == [None] * 4


def test_what_is_recorded_is_bounded_text() -> None:
    found = error_file.parse(record("\ud800" + "x" * 5000, "y" * 5000))
    assert found is not None
    assert len(found.message) == error_file.MAX_MESSAGE
    assert len(found.traceback) == names.LOG_TAIL_BYTES
    found.message.encode()


def test_a_recorded_exception_is_the_message_where_the_log_says_nothing() -> None:
    found = diagnose(3, 1, "", False, True, "ValueError: boom")
    assert found.message == "rank 3 exited with code 1: ValueError: boom"


CHILD_FAILED = """
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_21:00:00
  host      : a
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 4711)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 4711
============================================================
"""


def test_the_cause_that_a_torchrun_inside_reports_is_the_message() -> None:
    found = diagnose(0, 1, CHILD_FAILED, False, True)
    inner = "rank 1 of the torchrun inside exited with -9: Signal 9 (SIGKILL) received by PID 4711"
    assert found.message == f"rank 0 exited with code 1: {inner}"


def test_the_evidence_of_many_ranks_fits_into_one_message() -> None:
    said = WorkerExit(0, 1, False, "\U0001f600" * 5000, False, "\U0001f600" * 300)
    for ranks in (1, 8, 64, 256):
        evidence = [said.evidence(names.MAX_EVIDENCE_CHARS // ranks)] * ranks
        assert len(json.dumps(evidence)) < names.MAX_FRAME_BYTES
