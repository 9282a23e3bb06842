"""The warm process: imports torch once, and forks the workers of every attempt.

The agent holds the other end of a socket, whose messages are JSON: the warm process reports what it
imports and when it is ready, and the agent requests workers. With a request come two descriptors
for each rank: the worker's output, and its gate, a socket on which the worker sends its pid and
waits for the byte that lets it run. Workers are forked twice, so that they fall to the agent, which
reaps them as its own. The socket's end ends the process.
"""

from __future__ import annotations

import array
import json
import os
import socket
import sys
from typing import Any, Dict, List, Optional, Sequence, Tuple

from dtj_agent.warm import child, preload, script
from dtj_agent.warm.child import Birth

MAX_MESSAGE_BYTES = 256 * 1024
MAX_DESCRIPTORS = 253  # SCM_MAX_FD


class WarmServer:
    """Serves the requests of one agent."""

    def __init__(self, sock: socket.socket, agent: int, guarded: bool) -> None:
        self._socket = sock
        self._agent = agent
        self._guarded = guarded

    def send(self, message: Dict[str, Any]) -> None:
        """Sends one message; without an agent the process ends."""
        try:
            self._socket.send(json.dumps(message).encode())
        except OSError:
            os._exit(0)

    def serve(self) -> Birth:
        """Forks workers as the agent requests them. Returns in each worker, and nowhere else."""
        while True:
            request, descriptors = self._receive()
            if request is None:
                os._exit(0)
            try:
                birth = self._fork(request, descriptors)
            except OSError as error:
                self.send({"refused": "a process can't be forked: %s" % error.strerror})
                birth = None
            if birth is not None:
                return birth
            for descriptor in descriptors:
                os.close(descriptor)

    def _fork(self, request: Dict[str, Any], descriptors: Sequence[int]) -> Optional[Birth]:
        """Forks a process that forks the workers and ends. Returns a value in the workers alone."""
        why = preload.unfit() or script.shadowed(request["command"])
        if why is not None:
            self.send({"refused": why})
            return None
        sys.stdout.flush()
        sys.stderr.flush()
        between = os.fork()
        if between:
            os.waitpid(between, 0)
            return None
        parent = os.getpid()
        for place, own in enumerate(request["ranks"]):
            try:
                forked = os.fork()
            except OSError:
                os._exit(1)  # the agent sees the gates close that are left
            if forked == 0:
                output, gate = descriptors[2 * place : 2 * place + 2]
                for descriptor in descriptors:
                    if descriptor not in (output, gate):
                        os.close(descriptor)
                self._socket.close()
                return Birth(
                    command=request["command"],
                    kept=request["kept"][min(place, len(request["kept"]) - 1)],
                    own=own,
                    output=output,
                    gate=gate,
                    parent=parent,
                    agent=self._agent,
                    guarded=self._guarded,
                )
        os._exit(0)

    def _receive(self) -> Tuple[Optional[Dict[str, Any]], List[int]]:
        """Returns the next request with its descriptors; None if the agent is gone."""
        found = array.array("i")
        room = socket.CMSG_SPACE(MAX_DESCRIPTORS * found.itemsize)
        try:
            data, ancillary, _, _ = self._socket.recvmsg(MAX_MESSAGE_BYTES, room)
        except OSError:
            return None, []
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                found.frombytes(content[: len(content) - len(content) % found.itemsize])
        return (json.loads(data) if data else None), list(found)


def main() -> None:
    """Runs the warm process, and in each forked worker the user's script.

    The arguments are those that the agent gave after the program. No name of `__main__` may be read
    once this has returned, because a worker's script owns that module.
    """
    _, descriptor, agent, guarded, modules, left_out, _ = sys.argv
    sock = socket.socket(fileno=int(descriptor))
    server = WarmServer(sock, int(agent), guarded == "1")
    if guarded == "1":
        child.end_with_parent(int(agent))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("dtj_agent", "dtj_contract")]:
        del sys.modules[name]
    if not preload.is_installed("torch"):
        server.send({"off": "its Python has no torch"})
        os._exit(0)
    if not preload.preload(_names(modules), _names(left_out), server.send):
        os._exit(0)
    birth = server.serve()
    child.begin(birth)
    script.run(birth.command)


def _names(text: str) -> List[str]:
    return [name for name in text.split(",") if name]
