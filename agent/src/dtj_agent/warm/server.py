"""The warm process: imports torch once, and forks the workers of every attempt.

The agent holds the other end of a socket, whose messages are JSON: the warm process reports what it
imports and when it is ready, and the agent requests workers. With a request come two descriptors
for each rank: the worker's output, and its gate, a socket on which the worker sends its pid and
waits for the byte that lets it run. Workers are forked twice, so that they fall to the agent, which
reaps them as its own. The socket's end ends the process.

A worker reports the modules that the script imports, and a fork imports them and then serves in place
of this process (successor.py). The workers of the next attempt are forked ahead (standby.py), and each
imports what no process of all ranks can (rank_imports.py).
"""

from __future__ import annotations

import array
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from dtj_agent.warm import background, child, learned, preload, rank_imports, script, standby, successor
from dtj_agent.warm.child import Birth, Prepared
from dtj_agent.warm.import_report import Verdict
from dtj_agent.warm.learned import Learned
from dtj_agent.warm.rank_variables import RankVariables
from dtj_agent.warm.script_changes import package
from dtj_agent.warm.standby import Standbys
from dtj_agent.warm.successor import Successor
from dtj_agent.warm_needs import WarmNeeds, from_json

MAX_MESSAGE_BYTES = 256 * 1024
MAX_DESCRIPTORS = 253  # SCM_MAX_FD
# From an attempt's start to the forks for the next one, and from these to forks that import what each rank has to.
STANDBY_SECONDS, AHEAD_SECONDS = 0.5, 5.0


class WarmServer:
    """Serves the requests of one agent. `folder`: the agent's state dir; empty if nothing is learned."""

    def __init__(
        self,
        sock: socket.socket,
        agent: int,
        guarded: bool,
        folder: str,
        skipped: Sequence[str],
        needs: WarmNeeds,
        command: Sequence[str],
    ) -> None:
        self._socket = sock
        self._agent = agent
        self._guarded = guarded
        self._folder = folder
        self._skipped = list(skipped)
        self._variables = RankVariables(needs)
        self._started = time.monotonic()
        self._is_ready = False
        self._command = list(command)
        """Of the last request; every request has the same. Empty if it is not known yet."""
        self._changed: Dict[str, str] = {}
        self._successor: Optional[Successor] = None
        self._tries = self._generation = 0
        self._seen: Set[str] = set()
        """The modules that this process has, or has found to be missing."""
        self._news = _open_fifo(folder)
        self._orders: List[Dict[str, Any]] = []
        """Of the ranks of the last request."""
        self._rank_tries = 0
        self._imports_ahead = False
        """Whether the next standbys import."""
        self._suspect = ""
        """The package whose import has ended a process once."""
        self._standbys: Optional[Standbys] = None
        self._stand_by_at: Optional[float] = None

    def send(self, message: Dict[str, Any]) -> None:
        """Sends one message; without an agent the process ends."""
        try:
            self._socket.send(json.dumps(message).encode())
        except OSError:
            os._exit(0)

    def serve(self) -> Birth:
        """Forks workers as the agent requests them. Returns in each worker, and nowhere else."""
        self._learn()
        if self._successor is None:
            self._be_ready()
        while True:
            sources: List[Any] = [self._socket]
            # A report that comes while a try runs stays in the pipe, for the process that serves after it.
            sources += ([] if self._news is None else [self._news]) if self._successor is None else [self._successor]
            moments = [] if self._successor is None else [self._successor.until]
            if self._standbys is not None and self._standbys.unready:
                sources += self._standbys.unready
                moments.append(self._standbys.until)
            moments += [] if self._stand_by_at is None else [self._stand_by_at]
            wait = max(0.0, min(moments) - time.monotonic()) + 0.01 if moments else None
            readable = select.select(sources, [], [], wait)[0]
            if self._successor is not None:
                self._follow(self._successor)
            if self._standbys is not None:
                self._follow_standbys(self._standbys)
            if self._news in readable:
                self._read_news()
            if self._socket in readable:
                birth = self._answer()
                if birth is not None:
                    return birth
            elif self._stand_by_at is not None and time.monotonic() >= self._stand_by_at:
                birth = self._stand_by()
                if birth is not None:
                    return birth

    def _be_ready(self) -> None:
        if not self._is_ready:
            self._is_ready = True
            seconds = round(time.monotonic() - self._started, 2)
            self.send({"ready": len(sys.modules), "seconds": seconds, "hasLearned": self._generation > 0})

    # --- what the script imports ------------------------------------------------------------------

    def _read_news(self) -> None:
        assert self._news is not None
        try:
            os.read(self._news, 4096)
        except BlockingIOError:  # another process has read it
            return
        self._tries = 0
        why = learned.failure(self._folder)
        if why:
            self.send({"unknown": why})
        self._learn()

    def _learn(self) -> None:
        """Begins a try, if there is something to import, and memory for it."""
        is_over = self._tries >= successor.TRIES or self._generation >= successor.GENERATIONS
        if not self._folder or self._successor is not None or is_over:
            return
        found = learned.read(self._folder)
        left_out = {*found.left_out, *self._skipped}
        known = self._seen.union(sys.modules)
        new = [name for name in found.modules if name not in known and package(name) not in left_out]
        if not new:
            return
        if self._is_ready and not background.has_room():
            self.send({"leftOut": new[0], "why": "and %d more: the container has too little memory" % (len(new) - 1)})
            return
        own = self._variables.of_native_code(found.changed)
        if own:
            why = "and %d more: native code may read %s while it is imported, and the script sets it; spec.env can"
            self.send({"leftOut": new[0], "why": why % (len(new) - 1, own[0])})
            return
        self._tries += 1
        before = dict(os.environ)
        self._seen = set(found.modules)
        announce = None if self._is_ready else self.send
        self._successor = successor.begin(found, self._skipped, self._command, self._variables, announce)
        if self._successor is None:  # this is the successor
            self._generation += 1
            if self._standbys is not None:
                self._standbys.forget()  # they are forks of the process before, and have fewer modules
                self._standbys = None
            self._plan_standbys()
            changed = {key: value for key, value in os.environ.items() if before.get(key) != value}
            self._changed.update(changed)
            newest = learned.read(self._folder)  # with what the standbys have found meanwhile
            learned.keep(self._folder, found._replace(left_out=newest.left_out, by_rank=newest.by_rank))
            self._suspect = ""
            self._be_ready()

    def _follow(self, tried: Successor) -> None:
        """Takes the news of a try: its successor serves from now on, or its package is left out of the next."""
        verdict = tried.news(time.monotonic())
        if verdict is None:
            return
        if not verdict.bad:
            if self._is_ready:
                self.send({"learned": verdict.modules, "seconds": verdict.seconds})
            if self._standbys is not None:
                self._standbys.end()
            # The agent continues only this process; this one continues the one that serves.
            while os.WIFSTOPPED(os.waitpid(tried.pid, os.WUNTRACED)[1]):
                os.kill(tried.pid, signal.SIGCONT)
            os._exit(0)
        self._successor = None
        tried.end()
        self._seen = set()
        self._judge(verdict)
        self._be_ready()
        self._learn()
        if self._successor is None:
            self._plan_standbys()  # which may import now what was left out

    def _follow_standbys(self, standbys: Standbys) -> None:
        """Takes the news of imports for each rank; a package that can't stay is left out of the next try."""
        verdict = standbys.news(time.monotonic())
        if verdict is None:
            return
        if not verdict.bad:
            if verdict.modules:
                self._suspect, self._rank_tries = "", 0
                self.send({"ahead": verdict.modules, "seconds": verdict.seconds})
            return
        self._standbys, was_held = None, standbys.are_held()
        standbys.end()
        if was_held:
            self._rank_tries += 1
            self._judge(verdict)
            self._plan_standbys()

    def _judge(self, verdict: Verdict) -> None:
        """Leaves a package out. One whose import has ended the process gets a second try: a kill is no fault of it."""
        if verdict.died and verdict.bad != self._suspect:
            self._suspect = verdict.bad
            return
        learned.keep(self._folder, learned.read(self._folder).without(verdict.bad, verdict.why, verdict.by_rank))
        self._skipped.append(verdict.bad)
        self.send({"leftOut": verdict.bad, "why": verdict.why, "byRank": verdict.by_rank})

    # --- requests ---------------------------------------------------------------------------------

    def _answer(self) -> Optional[Birth]:
        """Answers one request. Returns a value in the workers alone."""
        try:
            request, descriptors = self._receive()
        except BlockingIOError:  # the successor has taken it
            return None
        if request is None:
            os._exit(0)
        self._command = request["command"]
        try:
            birth = self._fork(request, descriptors)
        except OSError as error:
            self.send({"refused": "a process can't be forked: %s" % error.strerror})
            birth = None
        if birth is None:
            for descriptor in descriptors:
                os.close(descriptor)
        return birth

    def _fork(self, request: Dict[str, Any], descriptors: Sequence[int]) -> Optional[Birth]:
        """Forks a process that forks the workers and ends. Returns a value in the workers alone."""
        why = preload.unfit() or script.shadowed(request["command"])
        if why is not None:
            self.send({"refused": why})
            return None
        kept, own = request["kept"], request["ranks"]
        orders = [
            {"command": request["command"], "kept": kept[min(place, len(kept) - 1)], "own": own[place],
             "changed": self._changed, "learning": "" if place else self._folder,
             "coordinator": self._variables.coordinator(own[place])}
            for place in range(len(own))
        ]  # fmt: skip
        self._orders = orders
        places = list(range(len(orders)))
        standbys, self._standbys = self._standbys, None
        if standbys is not None and standbys.fit(orders):
            places = standbys.start([json.dumps(order).encode() for order in orders], descriptors)
        elif standbys is not None:
            standbys.end()
        self._plan_standbys()
        return self._fork_now(orders, places, descriptors) if places else None

    def _fork_now(
        self, orders: Sequence[Dict[str, Any]], places: Sequence[int], descriptors: Sequence[int]
    ) -> Optional[Birth]:
        sys.stdout.flush()
        sys.stderr.flush()
        between = os.fork()
        if between:
            os.waitpid(between, 0)
            return None
        parent = os.getpid()
        for place in places:
            try:
                forked = os.fork()
            except OSError:
                os._exit(1)  # the agent sees the gates close that are left
            if forked == 0:
                output, gate = descriptors[2 * place : 2 * place + 2]
                for descriptor in descriptors:
                    if descriptor not in (output, gate):
                        os.close(descriptor)
                self._close()
                return self._birth(child.prepare(place == 0), orders[place], output, gate, parent)
        os._exit(0)

    def _birth(self, prepared: Prepared, order: Dict[str, Any], output: int, gate: int, parent: int) -> Birth:
        return Birth(
            prepared=prepared, output=output, gate=gate, parent=parent, agent=self._agent, guarded=self._guarded,
            **order,
        )  # fmt: skip

    def _plan_standbys(self) -> None:
        self._stand_by_at = time.monotonic() + STANDBY_SECONDS if self._orders else None
        self._imports_ahead = False

    def _stand_by(self) -> Optional[Birth]:
        """Forks the workers of the next attempt ahead. Returns a value in the workers alone.

        The first of them import nothing, because the ranks of the attempt load their checkpoint.
        """
        self._stand_by_at = None
        if not background.has_room() or preload.unfit() is not None:
            return None
        if self._standbys is not None:
            self._standbys.end()
            self._standbys = None
        found = self._for_each_rank()
        ahead = found if self._imports_ahead else None
        try:
            forked = standby.begin(self._orders, ahead, self._variables, self._close)
        except OSError:
            return None
        if isinstance(forked, Standbys):
            self._standbys = forked
            if found is not None and not self._imports_ahead:
                self._imports_ahead, self._stand_by_at = True, time.monotonic() + AHEAD_SECONDS
            return None
        return self._birth(forked.prepared, json.loads(forked.text), forked.output, forked.gate, forked.parent)

    def _for_each_rank(self) -> Optional[Learned]:
        """Returns what each standby imports ahead. A try of all modules comes first, because it finds what they are."""
        if not self._folder or self._successor is not None or self._rank_tries >= successor.TRIES:
            return None
        found = learned.read(self._folder)
        if not rank_imports.modules(found) or self._variables.of_native_code(found.changed):
            return None
        return found if background.has_room(len(self._orders)) else None

    def _close(self) -> None:
        """Closes, in a worker, what is the warm process's."""
        self._socket.close()
        if self._news is not None:
            os.close(self._news)
        if self._successor is not None:
            os.close(self._successor.fileno())
        if self._standbys is not None:
            self._standbys.forget()

    def _receive(self) -> Tuple[Optional[Dict[str, Any]], List[int]]:
        """Returns the next request with its descriptors; None if the agent is gone."""
        found = array.array("i")
        room = socket.CMSG_SPACE(MAX_DESCRIPTORS * found.itemsize)
        try:
            data, ancillary, _, _ = self._socket.recvmsg(MAX_MESSAGE_BYTES, room, socket.MSG_DONTWAIT)
        except BlockingIOError:
            raise
        except OSError:
            return None, []
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                found.frombytes(content[: len(content) - len(content) % found.itemsize])
        return (json.loads(data) if data else None), list(found)


def main() -> None:
    """Runs the warm process, and in each forked worker the user's script.

    The arguments are those that the agent gave after the program. No name of `__main__` may be read
    once this has returned, because a worker's script has replaced that module.
    """
    _, descriptor, agent, guarded, needed, modules, left_out, folder, command, _ = sys.argv
    sock = socket.socket(fileno=int(descriptor))
    needs = from_json(needed)
    server = WarmServer(sock, int(agent), guarded == "1", folder, _names(left_out), needs, json.loads(command))
    if guarded == "1":
        child.end_with_parent(int(agent))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("dtj_agent", "dtj_contract")]:
        del sys.modules[name]
    if not all(map(preload.is_installed, needs.modules[:1])):
        server.send({"off": "its Python has no %s" % needs.modules[0]})
        os._exit(0)
    if not preload.preload(needs.modules, _names(modules), _names(left_out), server.send):
        os._exit(0)
    birth = server.serve()
    child.begin(birth)
    script.run(birth.command)


def _open_fifo(folder: str) -> Optional[int]:
    """Opens the pipe through which a worker reports that it has written its imports; None where there is none."""
    path = os.path.join(folder, learned.NEWS_FIFO)
    try:
        if folder and not os.path.exists(path):
            os.mkfifo(path, 0o600)
        # Open for writing too, so that there is no end when a worker closes it.
        return os.open(path, os.O_RDWR | os.O_NONBLOCK) if folder else None
    except OSError:
        return None


def _names(text: str) -> List[str]:
    return [name for name in text.split(",") if name]
