"""Resolves names in helper threads, because getaddrinfo may block for many seconds and the loop must not."""

from __future__ import annotations

import queue
import socket
import threading
from typing import Callable, List, Tuple

from dtj_agent.net.loop import Loop
from dtj_agent.settings import Address

THREADS = 4
OnResolved = Callable[[List[Address], str], None]


class Resolver:
    """Starts threads when they are first needed; never, if all peers are given as numeric addresses."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._questions: queue.SimpleQueue[Tuple[Address, OnResolved]] = queue.SimpleQueue()
        self._threads = 0

    def resolve(self, address: Address, callback: OnResolved) -> None:
        """Calls `callback(numeric addresses, "")`, or `callback([], why)`, in the loop's thread.

        A name that does not resolve yet is normal.
        """
        if is_numeric(address[0]):
            callback([address], "")
            return
        if self._threads < THREADS:
            try:
                threading.Thread(target=self._work, name="dtj-resolver", daemon=True).start()
            except RuntimeError as error:
                # The workers use up the pod's process limit. Threads that run already can still answer.
                if not self._threads:
                    self._loop.soon(lambda why=str(error): callback([], why))  # type: ignore[misc]
                    return
            else:
                self._threads += 1
        self._questions.put((address, callback))

    def _work(self) -> None:
        while True:
            (host, port), callback = self._questions.get()
            found: List[Address] = []
            why = ""
            try:
                for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                    found.append((str(info[4][0]), port))
            except (OSError, UnicodeError) as error:
                why = "%s does not resolve (%s)" % (host, error)
            self._loop.soon(lambda found=found, why=why, callback=callback: callback(found, why))  # type: ignore[misc]


def is_numeric(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
            return True
        except OSError:
            continue
    return False
