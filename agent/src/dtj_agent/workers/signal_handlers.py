"""Whether a worker has a signal handler that could still save something, once its group has failed."""

from __future__ import annotations

import signal
import sys

from dtj_contract import names


def can_save_alone(pid: int) -> bool:
    """Returns whether this process catches SIGTERM, and not only with the handler of the training library.

    That handler saves nothing by itself, because a commit needs all ranks. The library catches
    another signal too, to show that SIGTERM's handler is its own.
    """
    if sys.platform != "linux":
        return True  # unknown
    caught = _caught(pid)
    return _has(caught, signal.SIGTERM) and not _has(caught, names.COLLECTIVE_STOP_SIGNAL)


def _has(caught: int, number: int) -> bool:
    return bool(caught >> (number - 1) & 1)


def _caught(pid: int) -> int:
    try:
        with open("/proc/%d/status" % pid) as file:
            for line in file:
                if line.startswith("SigCgt:"):
                    return int(line.split()[1], 16)
    except (OSError, ValueError, IndexError):
        pass  # it has ended
    return 0
