"""Why a worker ended, and what that costs."""

from __future__ import annotations

import errno
import os

import pytest

from dtj_agent.group.failure_rules import diagnose, exit_code_of, last_exception

TRACEBACK = 'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    main()\n'
ENDS = {
    "killed": (-9, "", False, False, "WorkerFailed", "rank 3 was ended by SIGKILL"),
    "killed for memory": (
        -9,
        "",
        True,
        False,
        "OOMKilled",
        "rank 3 was killed because the container reached its memory limit",
    ),
    "another signal while the kernel killed someone": (
        -11,
        "",
        True,
        False,
        "WorkerFailed",
        "rank 3 was ended by SIGSEGV",
    ),
    "a real-time signal": (-40, "", False, False, "WorkerFailed", "rank 3 was ended by signal 40"),
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
    "no word": (7, "epoch 3 done\n", False, True, "WorkerFailed", "rank 3 exited with code 7"),
    "its own word": (93, "RuntimeError: diverged", False, True, "NoRestartExitCode", "diverged"),
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
        "/usr/bin/python3: Error while finding module specification for 'a.b' (ModuleNotFoundError: No module named 'a')",
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
def test_a_workers_end_has_a_reason_and_a_sentence(
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
def test_a_command_that_could_not_be_started_for_want_of_resources_is_no_missing_entrypoint(
    number: int, reason: str
) -> None:
    """The pod may have its processes or memory back a second later: another attempt is worth it."""
    error = OSError(number, os.strerror(number))
    assert diagnose(3, exit_code_of(error), "python3: " + error.strerror, False, False).reason == reason


EXCEPTIONS = {
    "the last one": ("KeyError: 'a'\nDuring handling:\n" + TRACEBACK + "ValueError: b\n", "ValueError: b"),
    "before what the interpreter still says": ("ValueError: b\nException ignored in atexit\nbye\n", "ValueError: b"),
    "none": ("step 1\nloss: 0.5\n", None),
    "behind the prefix that torch puts": (
        "[rank1]: Traceback:\n[rank1]: AttributeError: no share\n",
        "AttributeError: no share",
    ),
    "without a message": ("AssertionError\n", "AssertionError"),
}


@pytest.mark.parametrize(("tail", "line"), EXCEPTIONS.values(), ids=EXCEPTIONS)
def test_the_last_exception_of_a_log_tail(tail: str, line: str | None) -> None:
    assert last_exception(tail) == line
