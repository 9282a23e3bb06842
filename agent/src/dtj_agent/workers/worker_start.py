"""Starts the workers of an attempt: forked from the warm process where that is possible, else plainly."""

from __future__ import annotations

import os
import socket
from typing import Callable, Dict, List, Mapping, Optional, Sequence

from dtj_agent.net.loop import READ, Loop, Timer
from dtj_agent.workers.supervisor import Supervisor
from dtj_agent.workers.warm_process import WarmProcess
from dtj_contract import names

Environments = Mapping[int, Mapping[str, str]]


class _Gate:
    """A rank that is being forked: its output, and the socket on which it reports its pid and waits."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.socket, self.theirs = socket.socketpair()
        try:
            self.reader, self.writer = os.pipe()
        except OSError:
            self.socket.close()
            self.theirs.close()
            raise
        self.socket.setblocking(False)

    def close_theirs(self) -> None:
        """Closes what the forked process has now."""
        self.theirs.close()
        os.close(self.writer)


class WorkerStart:
    """Starts one attempt at a time."""

    def __init__(
        self, loop: Loop, supervisor: Supervisor, warm: Optional[WarmProcess], log: Callable[[str], None]
    ) -> None:
        self._loop = loop
        self._supervisor = supervisor
        self._warm = warm
        self._log = log
        self._command: Sequence[str] = ()
        self._environments: Environments = {}
        self._waits = False
        """Whether the ranks wait for the warm process to be ready."""
        self._gates: Dict[int, _Gate] = {}
        self._timer: Optional[Timer] = None
        self._logged_why = ""
        self.began_ahead = False
        """Whether imports of the script were done ahead for the ranks of this attempt."""
        self.on_warm: Callable[[], None] = lambda: None
        """Called when the warm process has become ready, unusable or off."""
        supervisor.before_strangers = self._read_gates
        if warm is not None:
            warm.on_change = self._on_change

    def start(self, command: Sequence[str], environments: Environments) -> None:
        """Starts a process for each rank. A start that fails counts as the worker's exit."""
        self._supervisor.begin()
        self._command, self._environments, self.began_ahead = command, environments, False
        warm = self._warm
        if warm is None or warm.is_off:
            self._supervisor.spawn_ranks(command, environments)
            return
        differing = warm.differing(list(environments.values()))
        if differing is not None:
            self._plainly(environments, "%s differs from that of the warm process" % differing)
        elif warm.is_ready:
            self._fork(environments)
        elif warm.is_importing:
            # A plain start would have to import the same, once for each rank.
            self._waits = True
            self._timer = self._loop.later(names.WARM_WAIT_SECONDS, self._waited_too_long)
        else:
            self._plainly(environments, warm.why)

    def cancel(self) -> None:
        """Gives up what has not started: workers that are being forked end by themselves."""
        self._waits = False
        self._cancel_timer()
        for gate in list(self._gates.values()):
            self._forget(gate)
            os.close(gate.reader)

    # --- waiting for the warm process -------------------------------------------------------------

    def _on_change(self) -> None:
        warm = self._warm
        assert warm is not None
        if self._gates:
            # Workers that have reported their pid are the agent's already.
            self._read_gates()
            self._give_up_gates(warm.why)
        if self._waits and not warm.is_importing:
            self._waits = False
            self._cancel_timer()
            if warm.is_ready:
                self._fork(self._environments)
            else:
                self._plainly(self._environments, warm.why)
        self.on_warm()

    def _waited_too_long(self) -> None:
        self._waits = False
        self._plainly(self._environments, "it is still importing after %d s" % names.WARM_WAIT_SECONDS)

    def _plainly(self, environments: Environments, why: str) -> None:
        if why != self._logged_why:  # once, not for each attempt
            self._log("workers are started without the warm process: %s" % why)
            self._logged_why = why
        self._supervisor.spawn_ranks(self._command, environments)

    # --- forking ----------------------------------------------------------------------------------

    def _fork(self, environments: Environments) -> None:
        assert self._warm is not None
        gates: List[_Gate] = []
        try:
            for rank in environments:
                gates.append(_Gate(rank))
        except OSError as error:
            for gate in gates:
                gate.close_theirs()
                gate.socket.close()
                os.close(gate.reader)
            self._plainly(environments, "no descriptor is free: %s" % error.strerror)
            return
        # Of what the warm process had at its start, the names are enough.
        warm = self._warm.environ
        kept = [[key for key in warm if own.get(key) == warm[key]] for own in environments.values()]
        request = {
            "command": list(self._command),
            # Mostly the same for all ranks; a message has a limit.
            "kept": kept[:1] if all(each == kept[0] for each in kept) else kept,
            "ranks": [
                {key: value for key, value in own.items() if warm.get(key) != value} for own in environments.values()
            ],
        }
        descriptors = [fd for gate in gates for fd in (gate.writer, gate.theirs.fileno())]
        sent = self._warm.request(request, descriptors)
        for gate in gates:
            gate.close_theirs()
        if not sent:
            for gate in gates:
                gate.socket.close()
                os.close(gate.reader)
            self._plainly(environments, self._warm.why)
            return
        self._logged_why = ""
        self.began_ahead = self._warm.has_learned
        self._timer = self._loop.later(names.WARM_FORK_SECONDS, self._forks_too_slowly)
        for gate in gates:
            self._gates[gate.rank] = gate
            self._loop.watch(gate.socket, READ, lambda events, gate=gate: self._answered(gate))  # type: ignore[misc]

    def _read_gates(self) -> None:
        for gate in list(self._gates.values()):
            self._answered(gate)

    def _answered(self, gate: _Gate) -> None:
        try:
            answer = gate.socket.recv(32)
        except BlockingIOError:
            return
        except OSError:
            answer = b""
        if gate.rank not in self._gates:
            return
        if not answer.isdigit():
            assert self._warm is not None
            self._warm.read()  # the reason, which gives up all gates
            if gate.rank in self._gates:
                self._start_plainly([gate], "it did not fork rank %d" % gate.rank)
            return
        # The pid is known from here on, so whatever becomes of the worker is its own end.
        self._supervisor.adopt(gate.rank, int(answer), gate.reader)
        try:
            gate.socket.send(b"\0")
        except OSError:
            pass  # it has ended, and is reaped as any worker
        self._forget(gate)

    def _forks_too_slowly(self) -> None:
        assert self._warm is not None
        why = "it forks no worker within %d s" % names.WARM_FORK_SECONDS
        self._give_up_gates(why)
        self._warm.replace(why)

    def _give_up_gates(self, why: str) -> None:
        if self._gates:
            self._start_plainly(list(self._gates.values()), why)

    def _start_plainly(self, gates: List[_Gate], why: str) -> None:
        for gate in gates:
            self._forget(gate)
            os.close(gate.reader)
        self._plainly({gate.rank: self._environments[gate.rank] for gate in gates}, why)

    def _forget(self, gate: _Gate) -> None:
        self._loop.unwatch(gate.socket)
        gate.socket.close()
        del self._gates[gate.rank]
        if not self._gates:
            self._cancel_timer()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
