"""Why a worker ended: exit status, cgroup counter and the last lines it wrote -> a reason and a sentence. Pure."""

from __future__ import annotations

import errno
import re
import signal
from typing import NamedTuple, Optional

from dtj_agent import names
from dtj_agent.names import Reason

EXEC_NOT_FOUND, EXEC_NOT_PERMITTED = 127, 126  # as a shell reports that a command could not be started
EXEC_NO_RESOURCES = 71  # sysexits' EX_OSERR: no process, memory or file descriptor just now
_FOR_NOW = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY, errno.EINTR, errno.EIO, errno.ESTALE)
CRASH_SIGNALS = ("SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE")
"""Deaths that come from outside or from broken memory. SIGABRT is not among them: NCCL's watchdog aborts the innocent."""

_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Iteration)|[a-z_][\w.]*\.[A-Z]\w*)(?::.*)?$"
)
_TORCH_RANK = re.compile(r"^\[rank\d+\]: ?")  # torch's excepthook puts it before each line, once a process group is up
_NO_MODULE = re.compile(r"^\S*python\S*: (?:No module named |Error while finding module specification)")
_NO_SCRIPT = re.compile(r"can't open file .*\[Errno 2\]")


class Diagnosis(NamedTuple):
    reason: str
    permanent: bool
    """True: another attempt would end the same way."""
    message: str


def signal_name(exit_code: int) -> Optional[str]:
    """`SIGKILL` for -9; None for an ordinary exit."""
    if exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:  # real-time signals have no name
        return "signal %d" % -exit_code


def exit_code_of(error: OSError) -> int:
    """The exit code of a worker that could not be started."""
    if error.errno in _FOR_NOW:
        return EXEC_NO_RESOURCES
    return EXEC_NOT_FOUND if isinstance(error, FileNotFoundError) else EXEC_NOT_PERMITTED


def last_exception(tail: str) -> Optional[str]:
    """The line that ends the last Python traceback of a log tail, e.g. `ValueError: boom`."""
    for line in reversed(tail.splitlines()):
        line = _TORCH_RANK.sub("", line)
        if _EXCEPTION.match(line.rstrip()):
            return line.strip()[:300]
    return None


def diagnose(rank: int, exit_code: int, tail: str, oom_killed: bool, progressed: bool) -> Diagnosis:
    """`oom_killed`: the container's oom_kill counter rose; `progressed`: the job has ever done a step, in any attempt."""
    name = signal_name(exit_code)
    said = last_exception(tail)
    if name == "SIGKILL" and oom_killed:
        return _because(
            Reason.OOM_KILLED,
            "rank %d was killed because the container reached its memory limit; raise resources.limits.memory or use less"
            " (batch size, data loader workers)" % rank,
        )
    if name is not None:
        return _because(Reason.WORKER_FAILED, "rank %d was ended by %s%s" % (rank, name, ": " + said if said else ""))
    if exit_code == names.EXIT_NO_RESTART:
        why = "rank %d exited with code %d, its word that a restart is of no use%s"
        return _because(Reason.NO_RESTART_EXIT_CODE, why % (rank, exit_code, ": " + said if said else ""))
    missing = _missing_entrypoint(exit_code, tail)
    if missing is not None and not progressed:
        return _because(Reason.ENTRYPOINT_NOT_FOUND, "rank %d: the entrypoint can't be started: %s" % (rank, missing))
    if said is not None and said.startswith(("ImportError", "ModuleNotFoundError")) and not progressed:
        return _because(Reason.IMPORT_FAILED, "rank %d could not import what it needs: %s" % (rank, said))
    return _because(Reason.WORKER_FAILED, "rank %d exited with code %d%s" % (rank, exit_code, ": " + said if said else ""))


def _because(reason: str, message: str) -> Diagnosis:
    return Diagnosis(reason, reason in names.PERMANENT, message)


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
