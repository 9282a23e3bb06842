"""Workers that the warm process has forked ahead of the next attempt.

A fork copies the page tables of all imports, 8 ms each, and a forked process copies each page that it
writes to: both are done while the attempt before trains. A standby waits on a socket of its own for
what makes it a rank; the end of that socket ends it. A process between holds the standbys until then,
so that the agent, which kills orphans when it stops an attempt, does not have them yet.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import Callable, List, NamedTuple, Sequence, Union

MAX_ORDER_BYTES = 256 * 1024


class Order(NamedTuple):
    """The message that makes a standby a rank, with its output and gate; `parent` is the process between."""

    text: bytes
    output: int
    gate: int
    parent: int


class Standbys:
    """The standbys of one attempt, as the warm process sees them."""

    def __init__(self, pid: int, leash: socket.socket, sockets: Sequence[socket.socket]) -> None:
        self._pid = pid
        self._leash = leash
        self._sockets = list(sockets)

    def __len__(self) -> int:
        return len(self._sockets)

    def start(self, texts: Sequence[bytes], descriptors: Sequence[int]) -> List[int]:
        """Makes each standby a rank; `descriptors` has the output and the gate of each rank.

        Returns the places of the ranks that must be forked instead: their standbys have ended.
        """
        failed = []
        for place, text in enumerate(texts):
            try:
                socket.send_fds(self._sockets[place], [text], descriptors[2 * place : 2 * place + 2])
            except OSError:
                failed.append(place)
        self._release()
        return failed

    def end(self) -> None:
        """Ends standbys that are not needed. Messages do it, because a fork may hold the sockets too."""
        for sock in self._sockets:
            try:
                sock.send(b"\0")
            except OSError:
                pass  # it has ended already
        self._release()

    def forget(self) -> None:
        """Closes what a fork of the warm process has inherited."""
        for sock in [self._leash, *self._sockets]:
            sock.close()

    def _release(self) -> None:
        """Ends the process between, also if a signal has stopped it, so that its children fall to the agent."""
        self.forget()
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def begin(ranks: int, close_inherited: Callable[[], None], prepare: Callable[[int], None]) -> Union[Standbys, Order]:
    """Forks standbys for `ranks` ranks; returns an Order in each of them, once it is a rank.

    `close_inherited` closes, in each fork, what is the warm process's; `prepare` gets the standby's
    place. Raises OSError if the process between can't be forked.
    """
    leash, end_of_leash = socket.socketpair()
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(ranks)]
    ours, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        pid = os.fork()
    except OSError:
        _close([leash, end_of_leash, *ours, *theirs])
        raise
    if pid:
        _close([end_of_leash, *theirs])
        return Standbys(pid, leash, ours)
    close_inherited()
    _close([leash, *ours])
    parent = os.getpid()
    for place, sock in enumerate(theirs):
        try:
            forked = os.fork()
        except OSError:
            break  # this rank will be forked when it is needed, or started plainly
        if forked == 0:
            _close([end_of_leash, *theirs[:place], *theirs[place + 1 :]])
            return _wait(sock, place, parent, prepare)
    _close(theirs)
    end_of_leash.recv(1)  # ends with the warm process
    os._exit(0)


def _wait(sock: socket.socket, place: int, parent: int, prepare: Callable[[int], None]) -> Order:
    prepare(place)
    text, descriptors, _, _ = socket.recv_fds(sock, MAX_ORDER_BYTES, 2)
    if len(descriptors) != 2:
        os._exit(0)
    sock.close()
    return Order(text, descriptors[0], descriptors[1], parent)


def _close(sockets: Sequence[socket.socket]) -> None:
    for sock in sockets:
        sock.close()
