"""Ports for tests that must know one before it is bound.

The kernel gives ports of its ephemeral range to any connection of any process, so a port of that range that was free a
moment ago need not be free now. Below that range only those have one who ask for it by number.
"""

from __future__ import annotations

import itertools
import random
import socket

FIRST, LAST = 10000, 15000  # beside the MASTER_PORTs of agents (20000 on) and the ports of a test cluster (15000 on)
_next = itertools.count(random.SystemRandom().randrange(LAST - FIRST))  # test processes begin at places of their own


def free_port() -> int:
    """A port of loopback that nobody has now, and that this process has not given before."""
    for _ in range(LAST - FIRST):
        port = FIRST + next(_next) % (LAST - FIRST)
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port from {FIRST} to {LAST}")
