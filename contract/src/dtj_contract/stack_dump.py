"""Stack dumps on request: faulthandler writes all stacks into a registered file when the agent sends a signal.

The first line of the file is `pid N`, the process that has registered. A process that has not
registered would be terminated by the signal, so the agent signals no other.
"""

from __future__ import annotations

import os
import re
from typing import Optional

# A real-time signal (SIGRTMAX - 4 on Linux): scripts and libraries own SIGUSR1 and SIGUSR2.
SIGNAL = 60
MAX_HEADER_BYTES = 32
# Low numbers are reused by whatever the script opens next, after a script has closed all its files.
LOWEST_FD = 200

_HEADER = re.compile(rb"pid ([0-9]{1,10})\n")
_registered: Optional[int] = None


def register(path: str) -> bool:
    """Registers this process at `path`, with all its threads; returns whether that was possible.

    Registering again replaces the file. The handlers of fatal signals (faulthandler.enable) are
    left as the script has them. Never raises.
    """
    global _registered
    try:
        import faulthandler

        opened = _open(path)
        try:
            os.write(opened, b"pid %d\n" % os.getpid())
            faulthandler.register(SIGNAL, file=opened, all_threads=True, chain=False)
        except BaseException:
            os.close(opened)
            raise
        before, _registered = _registered, opened
        if before is not None:
            os.close(before)
    except Exception:  # noqa: BLE001  # a worker without stack dumps still trains
        return False
    return True


def _open(path: str) -> int:
    """Returns a descriptor of the emptied file. O_APPEND: the agent cuts the file before each request."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    opened = os.open(path, flags, 0o600)
    try:
        import fcntl

        high = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, LOWEST_FD)
    except OSError:  # a limit of less than LOWEST_FD files
        return opened
    os.close(opened)
    return high


def registered_pid(head: bytes) -> Optional[int]:
    """Returns the process that has registered, from the first bytes of its file; None if they are no header."""
    found = _HEADER.match(head[:MAX_HEADER_BYTES])
    return None if found is None else int(found.group(1))


def header_size(pid: int) -> int:
    """Returns the size of the header that `pid` has written."""
    return len(b"pid %d\n" % pid)
