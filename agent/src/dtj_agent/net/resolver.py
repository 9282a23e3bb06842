"""Resolves names in helper threads, because getaddrinfo may block for many seconds and the loop must not.

A recovery must not wait for DNS, which may be lost with the same node as a member. The address at which a peer
was last reached is kept, and is the answer where DNS has none in time.
"""

from __future__ import annotations

import queue
import socket
import threading
from typing import Callable, Dict, List, Tuple

from dtj_agent.net.loop import Loop
from dtj_agent.settings import Address

THREADS = 4
KNOWN_SECONDS = 0.3
"""How long DNS may take for a name whose last address is known. A replaced pod has another one."""
OnResolved = Callable[[List[Address], str], None]


class Resolver:
    """Starts threads when they are first needed; never, if all peers are given as numeric addresses."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._questions: queue.SimpleQueue[Address] = queue.SimpleQueue()
        self._waiting: Dict[Address, List[OnResolved]] = {}
        """The callbacks of each question that has no answer yet. A name is asked for once at a time."""
        self._known: Dict[Address, Address] = {}
        self._threads = 0

    def remember(self, address: Address, numeric: Address) -> None:
        """Keeps the numeric address at which the peer of this name was reached, or that it has given."""
        if not is_numeric(address[0]) and is_numeric(numeric[0]):
            self._known[address] = numeric

    def resolve(self, address: Address, callback: OnResolved) -> None:
        """Calls `callback(numeric addresses, "")`, or `callback([], why)`, in the loop's thread.

        A name that does not resolve yet is normal. The last known address comes after those of DNS.
        """
        if is_numeric(address[0]):
            callback([address], "")
            return
        waiting = self._waiting.get(address)
        if waiting is None:
            if not self._start_thread():
                self._loop.soon(lambda: self._answered(address, [], "can't start a thread"))
            else:
                self._questions.put(address)
            waiting = self._waiting[address] = []
        waiting.append(callback)
        if address in self._known:
            self._loop.later(KNOWN_SECONDS, lambda: self._give_known(address, callback))

    def _give_known(self, address: Address, callback: OnResolved) -> None:
        waiting = self._waiting.get(address, [])
        if callback in waiting:
            waiting.remove(callback)
            callback([self._known[address]], "")

    def _answered(self, address: Address, found: List[Address], why: str) -> None:
        known = self._known.get(address)
        if known is not None and known not in found:
            found = [*found, known]
        for callback in self._waiting.pop(address, []):
            callback(list(found), "" if found else why)

    def _start_thread(self) -> bool:
        """Returns whether a thread can answer."""
        if self._threads < THREADS:
            try:
                threading.Thread(target=self._work, name="dtj-resolver", daemon=True).start()
                self._threads += 1
            except RuntimeError:
                # The workers use up the pod's process limit. Threads that run already can still answer.
                pass
        return self._threads > 0

    def _work(self) -> None:
        while True:
            address = self._questions.get()
            found, why = _look_up(address)
            self._loop.soon(lambda address=address, found=found, why=why: self._answered(address, found, why))  # type: ignore[misc]


def _look_up(address: Address) -> Tuple[List[Address], str]:
    host, port = address
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return [], "%s does not resolve (%s)" % (host, error)
    return [(str(info[4][0]), port) for info in infos], ""


def is_numeric(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
            return True
        except OSError:
            continue
    return False
