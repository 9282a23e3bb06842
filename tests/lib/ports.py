"""Ports for tests that must know a port before it is bound.

The kernel gives ports of its ephemeral range to any connection of any process, so a port of that range that was free a
moment ago may be taken now. Below that range, a process has a port only if it binds that number.
"""

from __future__ import annotations

import itertools
import random
import socket

# The ports of a test cluster begin at 15000, and the MASTER_PORTs of agents at 20000.
FIRST, LAST = 10000, 15000
# Each test process begins at a random port.
_next = itertools.count(random.SystemRandom().randrange(LAST - FIRST))


def free_port() -> int:
    """Returns a loopback port that is free now and that this process has not returned before."""
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
