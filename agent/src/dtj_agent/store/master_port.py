"""A MASTER_PORT that no other program has: chosen for each attempt, held until the attempt's store listens on it."""

from __future__ import annotations

import os
import socket
from typing import Optional

from dtj_agent.errors import SettingsError
from dtj_contract import names

RANGE_FILE = "/proc/sys/net/ipv4/ip_local_port_range"


class PortHolder:
    """Holds one bound socket that does not listen. `port` is 0 before the first `renew`."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._socket: Optional[socket.socket] = None
        self.port = 0

    def renew(self) -> int:
        """Binds and returns another port than before.

        Raises SettingsError if no port can be bound, which means that the address is not this pod's.
        """
        self.release()
        first, last = names.MASTER_PORT_FLOOR, _ephemeral_floor() - 1
        for _ in range(200):
            port = first + int.from_bytes(os.urandom(4), "big") % (last - first + 1)
            if port != self.port and self._hold(port):
                self.port = port
                return port
        what = "%s: no port from %d to %d of %s can be bound for MASTER_PORT; set it to this pod's own address"
        raise SettingsError(what % (names.ENV_POD_IP, first, last, self._host))

    def release(self) -> None:
        """Releases the port, because the store of this attempt is another pod's."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def take(self) -> Optional[socket.socket]:
        """Returns the bound socket for the attempt's store; None if no port is held."""
        taken, self._socket = self._socket, None
        return taken

    def _hold(self, port: int) -> bool:
        sock = socket.socket(socket.AF_INET6 if ":" in self._host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.bind((self._host, port))
        except OSError:
            sock.close()
            return False
        self._socket = sock
        return True


def _ephemeral_floor() -> int:
    try:
        with open(RANGE_FILE) as file:
            floor = int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        floor = 32768
    return floor if floor > names.MASTER_PORT_FLOOR + 1000 else 65536
