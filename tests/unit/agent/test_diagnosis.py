"""Failures that end a job at once, are retried a few times, or are never held against it."""

from __future__ import annotations

import errno
import json
import os

import pytest

from dtj_agent.group.diagnosis import diagnose, last_exception, start_error_exit_code
from dtj_agent.group.worker_exit import WorkerExit
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
def test_error_that_no_attempt_can_cure_is_permanent(code: int, tail: str, reason: str) -> None:
    found = diagnose(3, code, tail, False, progressed=False)
    assert (found.reason, found.permanent) == (reason, True)
    evidence = [line for line in tail.splitlines() if "rror" in line or "Quit" in line][-1].replace("[rank1]: ", "")
    assert evidence.strip() in found.message


@pytest.mark.parametrize(("code", "tail"), [each[:2] for each in AT_ONCE.values()], ids=AT_ONCE)
def test_permanent_error_after_progress_is_retried(code: int, tail: str) -> None:
    found = diagnose(3, code, tail, False, progressed=True)
    assert (found.reason, found.permanent) == ("WorkerFailed", False)


TRIED_AGAIN = {
    "an import that was handled": (1, HANDLED),
    "a name error that was logged": (1, TRACEBACK + "NameError: name 'x' is not defined\nretrying\n"),
    "an import's line with another exit code": (7, TRACEBACK + "ImportError: x\n"),
    "exit 2 without usage": (2, "t.py: error: the server is gone\n"),
    "exit 2 of make": (2, "make: *** [all] Error 2\n"),
    "usage with exit 1": (1, USAGE + "t.py: error: unrecognized arguments: --x\n"),
    "an error related to a name error": (1, TRACEBACK + "UnboundLocalError: cannot access local variable 'x'\n"),
    "a value error": (1, TRACEBACK + "ValueError: x\n"),
    "an empty log": (1, ""),
}


@pytest.mark.parametrize(("code", "tail"), TRIED_AGAIN.values(), ids=TRIED_AGAIN)
def test_error_that_another_attempt_may_cure_is_not_permanent(code: int, tail: str) -> None:
    found = diagnose(3, code, tail, False, progressed=False)
    assert (found.reason, found.permanent) == ("WorkerFailed", False)


# --- exit status, signal and last exception ---------------------------------------------------------------------------


ENDS = {
    "killed": (-9, "", False, False, "WorkerFailed", "rank 3 was terminated by SIGKILL"),
    "killed for memory": (
        -9,
        "",
        True,
        False,
        "OOMKilled",
        "rank 3 was killed because the container reached its memory limit",
    ),
    "another signal while the kernel killed a process": (
        -11,
        "",
        True,
        False,
        "WorkerFailed",
        "rank 3 was terminated by SIGSEGV",
    ),
    "a real-time signal": (-40, "", False, False, "WorkerFailed", "rank 3 was terminated by signal 40"),
    "an exception": (
        1,
        TRACEBACK + "ValueError: boom\n",
        False,
        True,
        "WorkerFailed",
        "rank 3 exited with code 1: ValueError: boom",
    ),
    "an exception of a library": (
        1,
        TRACEBACK + "torch.cuda.OutOfMemoryError: x",
        False,
        True,
        "WorkerFailed",
        "OutOfMemoryError: x",
    ),
    "no exception": (7, "epoch 3 done\n", False, True, "WorkerFailed", "rank 3 exited with code 7"),
    "exit code 93": (93, "RuntimeError: diverged", False, True, "NoRestartExitCode", "diverged"),
    "import": (
        1,
        TRACEBACK + "ModuleNotFoundError: No module named 'x'",
        False,
        False,
        "ImportFailed",
        "No module named 'x'",
    ),
    "import after progress": (1, TRACEBACK + "ImportError: x", False, True, "WorkerFailed", "ImportError: x"),
    "no script": (
        2,
        "python3: can't open file '/t.py': [Errno 2] No such file or directory",
        False,
        False,
        "EntrypointNotFound",
        "t.py",
    ),
    "no module": (
        1,
        "/usr/bin/python3: No module named trainer",
        False,
        False,
        "EntrypointNotFound",
        "No module named trainer",
    ),
    "no package": (
        1,
        "/usr/bin/python3: Error while finding module specification for 'a.b' "
        "(ModuleNotFoundError: No module named 'a')",
        False,
        False,
        "EntrypointNotFound",
        "module specification for 'a.b'",
    ),
    "no command": (127, "trainx: command not found", False, False, "EntrypointNotFound", "trainx: command not found"),
    "not executable": (126, "t.sh: Permission denied", False, False, "EntrypointNotFound", "Permission denied"),
    "no script after progress": (
        2,
        "python3: can't open file '/t.py': [Errno 2] x",
        False,
        True,
        "WorkerFailed",
        "code 2",
    ),
    "usage": (2, "t.py: error: unrecognized arguments: --x", False, False, "UsageError", "unrecognized arguments: --x"),
    "usage after progress": (2, "t.py: error: unrecognized arguments: --x", False, True, "WorkerFailed", "code 2"),
}
PERMANENT = {"NoRestartExitCode", "ImportFailed", "EntrypointNotFound", "UsageError"}


@pytest.mark.parametrize(("code", "tail", "oom", "progressed", "reason", "message"), ENDS.values(), ids=ENDS)
def test_diagnose_returns_a_reason_and_a_message(
    code: int, tail: str, oom: bool, progressed: bool, reason: str, message: str
) -> None:
    found = diagnose(3, code, tail, oom, progressed)
    assert (found.reason, found.permanent) == (reason, reason in PERMANENT)
    assert message in found.message


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOENT, "EntrypointNotFound"),
        (errno.EACCES, "EntrypointNotFound"),
        (errno.EAGAIN, "WorkerFailed"),
        (errno.ENOMEM, "WorkerFailed"),
        (errno.EMFILE, "WorkerFailed"),
        (errno.ETXTBSY, "WorkerFailed"),
    ],
)
def test_command_that_lacked_resources_is_not_a_missing_entrypoint(number: int, reason: str) -> None:
    """The pod may have its processes or memory back a second later, so another attempt is worth it."""
    error = OSError(number, os.strerror(number))
    assert diagnose(3, start_error_exit_code(error), "python3: " + error.strerror, False, False).reason == reason


EXCEPTIONS = {
    "the last one": ("KeyError: 'a'\nDuring handling:\n" + TRACEBACK + "ValueError: b\n", "ValueError: b"),
    "before the interpreter's last lines": ("ValueError: b\nException ignored in atexit\nbye\n", "ValueError: b"),
    "none": ("step 1\nloss: 0.5\n", None),
    "behind torch's prefix": ("[rank1]: Traceback:\n[rank1]: AttributeError: no share\n", "AttributeError: no share"),
    "without a message": ("AssertionError\n", "AssertionError"),
}


@pytest.mark.parametrize(("tail", "line"), EXCEPTIONS.values(), ids=EXCEPTIONS)
def test_last_exception_of_a_log_tail_is_found(tail: str, line: str | None) -> None:
    assert last_exception(tail) == line


# --- what an attempt's age shows ------------------------------------------------------------------------------------


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


def test_import_error_of_a_long_attempt_is_retried() -> None:
    """A plain script reports no step, so its age shows that it works."""
    harness = running()
    fail(harness, IMPORT, after=names.EARLY_SECONDS + 1)
    assert harness.coordinator.outcome is None
    assert harness.coordinator.history.failures[-1]["reason"] == "WorkerFailed"


def test_import_error_after_a_long_attempt_is_retried() -> None:
    harness = running()
    fail(harness, "", after=names.EARLY_SECONDS + 1, exit_code=-9)
    fail(harness, IMPORT, after=1.0)
    assert harness.coordinator.outcome is None
    again = CoordinatorHarness(
        1, history=type(harness.coordinator.history).from_json(harness.coordinator.history.to_json())
    )
    assert again.coordinator.history.established, "a replaced pod 0 knows it too"


def test_import_error_of_a_short_attempt_fails_the_job() -> None:
    """At the second time in a row: the script may have handled the error of the first one, and logged it."""
    harness = running()
    fail(harness, IMPORT, after=names.EARLY_SECONDS - 1)
    assert harness.coordinator.outcome is None
    assert "retrying once" in harness.coordinator.history.events[-1]["message"]
    fail(harness, IMPORT, after=1.0)
    assert harness.coordinator.outcome is not None
    assert harness.coordinator.outcome["reason"] == "ImportFailed"


def test_import_error_that_was_not_handled_fails_the_job_at_once() -> None:
    recorded = "ModuleNotFoundError: No module named 'flash_attn'"
    found = diagnose(3, 1, IMPORT, False, progressed=False, recorded=recorded)
    assert (found.reason, found.permanent, found.sure) == ("ImportFailed", True, True)
    assert not diagnose(3, 1, IMPORT, False, progressed=False).sure
    other = diagnose(3, 1, IMPORT, False, progressed=False, recorded="ValueError: boom")
    assert (other.reason, other.permanent) == ("WorkerFailed", False), "the import was handled"


MISSING = TRACEBACK + "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'\n"


def test_missing_file_is_announced_and_retried_a_few_times() -> None:
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


def test_file_that_appears_in_time_resets_the_tries() -> None:
    harness = running()
    for tail in (MISSING, MISSING, MISSING, MISSING, "", MISSING, MISSING):
        fail(harness, tail, after=1.0)
    assert harness.coordinator.outcome is None


def test_file_that_disappears_in_training_is_an_ordinary_failure() -> None:
    harness = running()
    for _ in range(6):
        fail(harness, MISSING, after=names.EARLY_SECONDS + 1)
    assert harness.coordinator.outcome is None
    assert {failure["reason"] for failure in harness.coordinator.history.failures} == {"WorkerFailed"}


@pytest.mark.parametrize(("lived", "leases"), [(11.0, [1, 2, 3, 4]), (9.0, [1, 2, 3])])
def test_only_attempts_that_ended_within_10_s_are_held_back(lived: float, leases: list[int]) -> None:
    """A plain script that trains for half a minute before each failure is restarted at once."""
    harness = running()
    for attempt in (1, 2, 3):
        harness.time += lived
        harness.fail(0, -9, attempt=attempt)
        harness.stopped(0, attempt=attempt)
        if attempt == 2 and lived < 10:
            harness.wait(1)
    assert harness.leases == leases


def test_time_of_a_stop_does_not_count_as_life() -> None:
    harness = running()
    for attempt in (1, 2, 3):
        harness.time += 1.0
        harness.fail(0, -9, attempt=attempt)
        harness.time += 60.0  # its SIGTERM handler saves
        harness.stopped(0, attempt=attempt)
        harness.wait(1.0 if attempt == 2 else 0.0)
    assert harness.leases == [1, 2, 3], "the fourth waits"
    assert not harness.coordinator.history.established


def test_recorded_exception_is_the_message_of_an_empty_log() -> None:
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


def test_cause_that_a_nested_torchrun_reports_is_the_message() -> None:
    found = diagnose(0, 1, CHILD_FAILED, False, True)
    inner = "rank 1 of the nested torchrun exited with code -9: Signal 9 (SIGKILL) received by PID 4711"
    assert found.message == f"rank 0 exited with code 1: {inner}"


def test_evidence_of_many_ranks_fits_one_message() -> None:
    exit_ = WorkerExit(0, 1, False, "\U0001f600" * 5000, False, "\U0001f600" * 300)
    for ranks in (1, 8, 64, 256):
        evidence = [exit_.evidence(names.MAX_EVIDENCE_CHARS // ranks)] * ranks
        assert len(json.dumps(evidence)) < names.MAX_FRAME_BYTES


def test_message_that_begins_with_a_new_line_is_not_lost() -> None:
    """As those of transformers about a package that is missing, and of multiprocessing."""
    tail = (
        TRACEBACK + "[rank3]: ImportError: \n[rank3]: LlamaTokenizer requires SentencePiece.\n[rank3]: Please install\n"
    )
    found = diagnose(3, 1, tail, False, True)
    assert found.message == "rank 3 exited with code 1: ImportError: LlamaTokenizer requires SentencePiece."
