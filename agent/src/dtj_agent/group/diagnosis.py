"""Why a worker ended: exit status, OOM counter and last log lines -> a reason and a message. Pure.

A script is judged by its early errors only until some attempt has worked: a script that did a step
once has no syntax error.
"""

from __future__ import annotations

import errno
import re
import signal
from typing import NamedTuple, Optional, Sequence

from dtj_contract import names
from dtj_contract.names import Reason

EXEC_NOT_FOUND, EXEC_NOT_PERMITTED = 127, 126
"""As a shell reports that a command could not be started."""
EXEC_NO_RESOURCES = 71
"""EX_OSERR of sysexits: no process, memory or file descriptor is free at the moment."""
_TEMPORARY_ERRORS = (
    errno.EAGAIN,
    errno.ENOMEM,
    errno.EMFILE,
    errno.ENFILE,
    errno.ETXTBSY,
    errno.EINTR,
    errno.EIO,
    errno.ESTALE,
)
CRASH_SIGNALS = ("SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE")
"""Deaths that come from outside or from broken memory.

SIGABRT is missing: NCCL's watchdog aborts innocent ranks.
"""

_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Iteration)|[a-z_][\w.]*\.[A-Z]\w*)(?::.*)?$"
)
# torch's excepthook puts this before each line once a process group is up.
_TORCH_RANK = re.compile(r"^\[rank\d+\]: ?")
_NO_MODULE = re.compile(r"^\S*python\S*: (?:No module named |Error while finding module specification)")
_NO_SCRIPT = re.compile(r"can't open file .*\[Errno 2\]")
# torch's C++ log, which may continue after the interpreter's last line.
_TORCH_LOG = re.compile(r"^\[[IWEF]\d{4} ")
_IMPORT_ERRORS = ("ImportError", "ModuleNotFoundError")
_SCRIPT_ERRORS = ("SyntaxError", "IndentationError", "TabError", "NameError", "bdb.BdbQuit")
# The last line of argparse and of click; the usage text before it may be longer than the tail.
_USAGE_LINE = re.compile(r"^(?:[^\s:]+(?: [\w-]+)*: error|Error): ")
_USAGE_TEXT = re.compile(
    r"^(?:usage|Usage): |: error: (?:unrecognized arguments|the following arguments are required|argument .+: "
    r"|ambiguous option|one of the arguments )",
    re.MULTILINE,
)
# The box that torchrun prints when one of its own workers has failed.
_TORCHRUN_CAUSE = re.compile(
    r"Root Cause.*?rank *: (?P<rank>\d+).*?exitcode *: (?P<code>-?\d+).*?traceback *: (?P<why>[^\n]+)", re.DOTALL
)


class Diagnosis(NamedTuple):
    reason: str
    permanent: bool
    """Whether another attempt would end the same way."""
    message: str
    sure: bool = True
    """Whether the script is known not to have handled the error that is permanent."""


def signal_name(exit_code: int) -> Optional[str]:
    """Returns `SIGKILL` for -9; None for an ordinary exit."""
    if exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:  # real-time signals have no name
        return "signal %d" % -exit_code


def start_error_exit_code(error: OSError) -> int:
    """Returns the exit code of a worker whose start failed with `error`."""
    if error.errno in _TEMPORARY_ERRORS:
        return EXEC_NO_RESOURCES
    return EXEC_NOT_FOUND if isinstance(error, FileNotFoundError) else EXEC_NOT_PERMITTED


def last_exception(tail: str) -> Optional[str]:
    """Returns the last line of the last Python traceback in a log tail: `ValueError: boom`."""
    lines = [_TORCH_RANK.sub("", line).rstrip() for line in tail.splitlines()]
    for at in reversed(range(len(lines))):
        if _EXCEPTION.match(lines[at]):
            return headline(lines[at:])[:300]
    return None


def headline(lines: Sequence[str]) -> str:
    """Returns the first line of an exception, with the first text below where its message begins with a new line."""
    first = lines[0].strip()
    if not first.endswith(":"):
        return first
    below = (line.strip() for line in lines[1:])
    return next((f"{first} {line}" for line in below if any(map(str.isalpha, line))), first)


def diagnose(
    rank: int, exit_code: int, tail: str, oom_killed: bool, progressed: bool, recorded: Optional[str] = None
) -> Diagnosis:
    """Returns why the worker of `rank` ended.

    `oom_killed`: the container's oom_kill counter rose. `recorded`: the message in the worker's
    error file. `progressed`: some attempt has done a step, or lived long enough for one, so the
    script itself can't be at fault.
    """
    name = signal_name(exit_code)
    evidence = recorded or last_exception(tail)
    if evidence is not None and "ChildFailedError" in evidence:
        evidence = _inner_cause(tail) or evidence
    detail = ": " + evidence if evidence else ""
    if name == "SIGKILL" and oom_killed:
        return _because(
            Reason.OOM_KILLED,
            "rank %d was killed because the container reached its memory limit;"
            " raise resources.limits.memory or use less (batch size, data loader workers)" % rank,
        )
    if name is not None:
        return _because(Reason.WORKER_FAILED, "rank %d was terminated by %s%s" % (rank, name, detail))
    if exit_code == names.EXIT_NO_RESTART:
        why = "rank %d exited with code %d, which rules out a restart%s"
        return _because(Reason.NO_RESTART_EXIT_CODE, why % (rank, exit_code, detail))
    missing = _missing_entrypoint(exit_code, tail)
    if missing is not None and not progressed:
        return _because(Reason.ENTRYPOINT_NOT_FOUND, "rank %d: the entrypoint can't be started: %s" % (rank, missing))
    early = None if progressed else _early_error(rank, exit_code, tail, recorded)
    if early is not None:
        return early
    return _because(Reason.WORKER_FAILED, "rank %d exited with code %d%s" % (rank, exit_code, detail))


def _because(reason: str, message: str) -> Diagnosis:
    return Diagnosis(reason, reason in names.PERMANENT, message)


def _early_error(rank: int, exit_code: int, tail: str, recorded: Optional[str]) -> Optional[Diagnosis]:
    """Returns the error that ended a script before its first step; None if its last line is no error.

    Only the very last line counts, because a script may handle and log the same errors. A script that
    then ends without a line of its own looks the same, unless the error was recorded as not handled.
    """
    last = _last_line(tail)
    if recorded and exit_code == 1:
        last = recorded
    kind = last.partition(":")[0]
    if exit_code == 2 and _USAGE_LINE.match(last) and _USAGE_TEXT.search(tail):
        return _because(Reason.USAGE_ERROR, "rank %d rejected its arguments: %s" % (rank, last))
    if exit_code != 1:
        return None
    if kind in _IMPORT_ERRORS:
        found = _because(Reason.IMPORT_FAILED, "rank %d failed to import a module: %s" % (rank, last))
        return found._replace(sure=bool(recorded))
    if kind in _SCRIPT_ERRORS:
        found = _because(Reason.SCRIPT_ERROR, "rank %d failed before its first step: %s" % (rank, last))
        return found._replace(sure=bool(recorded))
    if kind == "FileNotFoundError":
        return _because(Reason.FILE_NOT_FOUND, "rank %d did not find a file before its first step: %s" % (rank, last))
    return None


def _last_line(tail: str) -> str:
    lines = [_TORCH_RANK.sub("", line).strip() for line in tail.splitlines()]
    return next((line[:300] for line in reversed(lines) if line and not _TORCH_LOG.match(line)), "")


def _inner_cause(tail: str) -> Optional[str]:
    found = _TORCHRUN_CAUSE.search(tail)
    if found is None:
        return None
    why = found["why"].strip()[:200]
    return "rank %s of the nested torchrun exited with code %s: %s" % (found["rank"], found["code"], why)


def _missing_entrypoint(exit_code: int, tail: str) -> Optional[str]:
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    last = lines[-1][:300] if lines else ""
    if exit_code in (EXEC_NOT_FOUND, EXEC_NOT_PERMITTED):
        return last or "command not found"
    if exit_code == 1 and _NO_MODULE.match(last):  # python3 -m nosuch
        return last
    if exit_code == 2 and _NO_SCRIPT.search(last):  # python3 nosuch.py
        return last
    return None
