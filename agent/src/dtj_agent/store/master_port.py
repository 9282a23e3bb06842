"""Ports that no other program has: chosen for each attempt, held until it listens on them.

The first is MASTER_PORT. More of them follow it where each rank of the pod serves one.
"""

from __future__ import annotations

import os
import socket
from typing import List, Optional

from dtj_agent.errors import SettingsError
from dtj_contract import names

RANGE_FILE = "/proc/sys/net/ipv4/ip_local_port_range"


class PortHolder:
    """Holds bound sockets that do not listen, on `port` and the `count` - 1 ports after it.

    `port` is 0 before the first `renew`.
    """

    def __init__(self, host: str, count: int = 1) -> None:
        self._host = host
        self._count = count
        self._sockets: List[socket.socket] = []
        self.port = 0

    def renew(self) -> int:
        """Binds and returns another port than before, which none of the ports before was.

        Raises SettingsError if no port can be bound, which means that the address is not this pod's.
        """
        self.release()
        first, last = names.MASTER_PORT_FLOOR, _ephemeral_floor() - 1
        for _ in range(200):
            port = first + int.from_bytes(os.urandom(4), "big") % (last - first + 2 - self._count)
            if abs(port - self.port) >= self._count and self._hold(port):
                self.port = port
                return port
        what = "%s: no port from %d to %d of %s can be bound for MASTER_PORT; set it to this pod's own address"
        raise SettingsError(what % (names.ENV_POD_IP, first, last, self._host))

    def release(self) -> None:
        """Releases the ports, because this pod does not serve the store of this attempt, or its ranks serve them."""
        for held in self._sockets:
            held.close()
        self._sockets = []

    def take(self) -> Optional[socket.socket]:
        """Returns the bound socket of `port` for the attempt's store; None if no port is held."""
        taken = self._sockets.pop(0) if self._sockets else None
        self.release()
        return taken

    def _hold(self, port: int) -> bool:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        for each in range(port, port + self._count):
            sock = socket.socket(family, socket.SOCK_STREAM)
            self._sockets.append(sock)
            try:
                sock.bind((self._host, each))
            except OSError:
                self.release()
                return False
        return True


def _ephemeral_floor() -> int:
    try:
        with open(RANGE_FILE) as file:
            floor = int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        floor = 32768
    return floor if floor > names.MASTER_PORT_FLOOR + 1000 else 65536
