"""The parts of the simulator's worlds: workers, links, pods, a network.

simulator.py puts the parts together.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dtj_agent.group import effects as coordinator_effects
from dtj_agent.group import member
from dtj_agent.group.coordinator import Coordinator
from dtj_agent.group.history import History
from dtj_agent.group.member import Identity, Member
from dtj_agent.group.messages import Now, check
from dtj_contract import names

if TYPE_CHECKING:
    from tests.unit.agent.simulator import World

UID = "job-uid"
WALL = 1_700_000_000.0


class Violation(AssertionError):
    """An invariant does not hold; the message has the seed."""


class Worker:
    def __init__(self, rank: int, attempt: int) -> None:
        self.rank = rank
        self.attempt = attempt
        self.requested = False
        self.exit_code: int | None = None
        self.held = False
        """The worker is in a system call that no signal ends."""


class Link:
    """A member's connection to a coordinator's agent. Delivery is in order and ends with a break."""

    serial = 0

    def __init__(self, pod: Pod, hub: Pod) -> None:
        Link.serial += 1
        self.number = Link.serial
        self.pod, self.hub = pod, hub
        self.agents = (pod.life, hub.life)
        self.up = True
        self.next_free = {True: 0.0, False: 0.0}


class Pod:
    """A pod of the StatefulSet.

    `life` counts its agent processes, so that a message for a dead one is not delivered.
    `generation` counts the pods of its ordinal. A pod that was replaced may live on as a twin of
    the pod that the API knows.
    """

    def __init__(self, world: World, ordinal: int, generation: int = 0) -> None:
        self.world, self.ordinal, self.generation = world, ordinal, generation
        self.is_twin = False
        self.skew = world.rng.choice((0.0, 0.0, world.rng.uniform(-3600.0, 3600.0)))
        """Seconds by which its wall clock is wrong."""
        self.hint: Pod | None = None
        """The last known address of the coordinator."""
        self.life = 0
        self.alive = False
        self.saved: dict[str, Any] = {}
        self.final: dict[str, Any] | None = None
        self.workers: dict[int, Worker] = {}
        self.link: Link | None = None
        self.member: Any = None
        self.coordinator: Coordinator | None = None
        self.conns: dict[int, Link] = {}
        self.leaving = False

    def boot(self) -> None:
        world = self.world
        self.life += 1
        self.alive, self.leaving, self.link, self.conns = True, False, None, {}
        me = Identity(
            UID,
            self.ordinal,
            f"{self}.{self.life}",
            f"j-{self.ordinal}",
            "n",
            f"10.{self.generation}.0.{self.ordinal}",
            3.0,
        )
        self.member = Member(me, dict(self.saved), self.final)
        self.member.port = world.rng.randrange(20000, 30000)
        self.coordinator = None
        if self.ordinal == 0:
            history = History.from_json(self.member.history.to_json())
            self.coordinator = Coordinator(world.spec, history, self.final, world.now(self))
        world.after(0.0, self.life_of(self.dial))
        world.after(1.0, self.life_of(self.second))

    def __str__(self) -> str:
        return f"{self.ordinal}" + "'" * self.generation

    def life_of(self, call: Callable[[], None]) -> Callable[[], None]:
        """Returns a call that does nothing unless this very agent process is alive by then."""
        life = self.life

        def run() -> None:
            if self.alive and self.life == life:
                call()

        return run

    def second(self) -> None:
        self.world.after(1.0, self.life_of(self.second))
        self.send_up({"type": "beat"})
        if self.coordinator is not None:
            for link in list(self.conns.values()):
                self.world.deliver(link, False, {"type": "beat", "live": self.coordinator.history.live()})
            self.world.coordinator_does(self, self.coordinator.tick(self.world.now(self)))
            self.call_missing()
        elif self.link is None:
            self.ask_around()

    # --- calls, as agent.py and announce.py make them ------------------------------------------------------------

    def call_missing(self) -> None:
        world, coordinator = self.world, self.coordinator
        if coordinator is None:  # it crashed in the middle of the tick
            return
        for ordinal in [o for o in range(1, world.replicas) if o not in coordinator.peers]:
            world.call(
                self,
                world.lookup(ordinal),
                lambda other, started=coordinator.succession.announced: other.called(self, started),
            )  # type: ignore[misc]
        if coordinator.is_replaced and world.lookup(0) is self:
            world.coordinator_does(self, coordinator.named(world.now(self)))

    def ask_around(self) -> None:
        others = [ordinal for ordinal in range(1, self.world.replicas) if ordinal != self.ordinal]
        for ordinal in self.world.rng.sample(others, min(len(others), names.ANNOUNCE_FANOUT)):
            self.world.call(self, self.world.lookup(ordinal), lambda other: other.asked(self))

    def called(self, caller: Pod, started: int) -> None:
        """Handles a coordinator's call, and returns the attempt that is known here."""
        if self.member.follows(started) or self.world.lookup(0) is caller:
            self.go_to(caller)
        known = self.member.known_attempt
        self.world.call(self, caller, lambda hub: hub.heard_of(known))

    def heard_of(self, attempt: int) -> None:
        if self.coordinator is not None:
            self.world.coordinator_does(self, self.coordinator.heard_of(attempt, self.world.now(self)))

    def asked(self, caller: Pod) -> None:
        """Handles the call of a member that has no coordinator: returns the address, if known."""
        link = self.link
        if link is not None:
            self.world.call(self, caller, lambda other: other.go_to(link.hub) if other.link is None else None)

    def go_to(self, hub: Pod) -> None:
        if self.link is not None and self.link.hub is hub:
            return
        self.hint = hub
        if self.link is not None:
            # A member that knows less than its new coordinator can't tell it from one that was
            # replaced, as long as there is no epoch that more than half of the pods have agreed on.
            named = self.link.hub.coordinator
            knows = named is not None and 0 < named.succession.started <= self.member.known_attempt
            if hub.is_twin and self.world.lookup(0) is self.link.hub and knows:
                self.world.fail(f"pod {self} leaves the pod 0 that the API server knows for one that was replaced")
            self.world.leave(self.link)
        else:
            self.dial()

    def dial(self) -> None:
        world = self.world
        if self.link is not None:
            return
        hub, self.hint = self.hint or world.lookup(0), None
        if self.ordinal == 0:
            hub = self
        if hub.alive and world.reachable(self, hub):
            link = self.link = Link(self, hub)
            hub.conns[link.number] = link
            world.member_does(self, self.member.connected(world.now(self)))
        else:
            world.after(world.rng.uniform(0.05, 1.0), self.life_of(self.dial))

    def send_up(self, message: dict[str, Any]) -> None:
        if self.link is not None:
            self.world.deliver(self.link, True, message)

    def kill(self) -> None:
        """Kills the agent process and, with it, the container: all its workers are dead at once."""
        self.alive = False
        self.world.workers_die(self, list(self.workers.values()))
        self.workers = {}
        for link in [*self.conns.values(), *([self.link] if self.link else [])]:
            self.world.cut(link)


class Network:
    """Time, and the messages between the pods."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.time = 0.0
        self.log: list[str] = []
        self.pods: list[Pod] = []
        """The pods that the API server knows, by ordinal."""
        self.twins: list[Pod] = []
        """The pods that were replaced and live on."""
        self.names: list[Pod] = []
        """The pods that the names lead to, by ordinal."""
        self.blocked: set[Pod] = set()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def member_does(self, pod: Pod, effects: list[member.Effect]) -> None:
        raise NotImplementedError

    def coordinator_does(self, pod: Pod, effects: list[coordinator_effects.Effect]) -> None:
        raise NotImplementedError

    def now(self, pod: Pod | None = None) -> Now:
        """Returns both clocks of a pod; wall clocks differ."""
        return Now(self.time, WALL + self.time + (pod.skew if pod is not None else 0.0))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.time + seconds, self._count, call))

    def log_line(self, text: str) -> None:
        self.log.append(f"{self.time:8.3f} {text}")

    def fail(self, text: str) -> None:
        log = "\n".join(self.log[-60:])
        raise Violation(f"seed {self.seed}: {text}\n{log}")

    def reachable(self, a: Pod, b: Pod) -> bool:
        return a is b or not ({a, b} & self.blocked)

    def lookup(self, ordinal: int) -> Pod:
        """Returns the pod that this name leads to: the current one, or for a while its predecessor."""
        return self.names[ordinal]

    @property
    def everyone(self) -> list[Pod]:
        return self.pods + self.twins

    def call(self, caller: Pod, other: Pod, what: Callable[[Pod], None]) -> None:
        """Opens a connection for one question or answer."""
        lives = caller.life

        def arrive() -> None:
            if caller.alive and caller.life == lives and other.alive and self.reachable(caller, other):
                what(other)

        self.after(self.rng.choice((0.0, 0.01, 0.2)) * self.rng.random(), arrive)

    def deliver(self, link: Link, up: bool, message: dict[str, Any]) -> None:
        message = dict(check(message))
        at = max(link.next_free[up], self.time + self.rng.choice((0.0, 0.001, 0.01, 0.2)) * self.rng.random())
        link.next_free[up] = at

        def arrive() -> None:
            if not link.up or not self.same_lives(link):
                return
            if not up:
                self.member_does(link.pod, link.pod.member.received(message, self.now(link.pod)))
            elif message["type"] == "hello":
                assert link.hub.coordinator is not None
                self.coordinator_does(link.hub, link.hub.coordinator.joined(link.number, message, self.now(link.hub)))
            else:
                assert link.hub.coordinator is not None
                self.coordinator_does(link.hub, link.hub.coordinator.received(link.number, message, self.now(link.hub)))

        self.after(at - self.time, arrive)

    def same_lives(self, link: Link) -> bool:
        return (link.pod.life, link.hub.life) == link.agents and link.pod.alive and link.hub.alive

    def bring_back(self, pod: Pod, keep_disk: bool) -> None:
        pod.kill()
        if not keep_disk:
            pod.saved, pod.final = {}, pod.final if pod.final is None else None
        pause = self.rng.uniform(0.1, 12.0)
        self.after(pause, lambda: None if pod.alive or pod not in self.everyone else pod.boot())

    def cut(self, link: Link) -> None:
        """Breaks the link; each living side notices by a closed connection or by silence."""
        if not link.up:
            return
        link.up = False
        for pod, life in ((link.pod, link.agents[0]), (link.hub, link.agents[1])):
            silence = self.rng.choice((0.0, 0.01, self.rng.uniform(0, names.PEER_DEAD_SECONDS)))
            self.after(silence, self._notice(link, pod, life, silence))

    def leave(self, link: Link) -> None:
        """Closes the link on the member's side."""
        link.up = False
        self._notice(link, link.pod, link.agents[0], 0.0)()
        self.after(self.rng.choice((0.0, 0.01)), self._notice(link, link.hub, link.agents[1], 0.0))

    def _notice(self, link: Link, pod: Pod, life: int, silence: float) -> Callable[[], None]:
        def run() -> None:
            if not pod.alive or pod.life != life:
                return
            if pod is link.pod and pod.link is link:
                pod.link = None
                self.member_does(pod, pod.member.disconnected(silence, self.now(pod)))
                self.after(self.rng.uniform(0.02, 0.05), pod.life_of(pod.dial))
            if pod is link.hub and pod.conns.pop(link.number, None) is not None:
                assert pod.coordinator is not None
                self.coordinator_does(pod, pod.coordinator.left(link.number, silence, self.now(pod)))

        return run


def check_counted(world: World, final: dict[str, Any]) -> None:
    """Checks attempts that broke by one kind of fault: a failed worker is counted, a lost pod never."""
    free = {"pod", "leave"}
    recoveries = {recovery["attempt"]: recovery for recovery in final["recoveries"]}
    surely = 0
    ever = {kind for kinds in world.faults.values() for kind in kinds}
    for before, attempt in itertools.pairwise([0, *world.started[:-1]]):
        faults = set(world.faults.get(attempt, ()))
        # Numbers between the two were granted, and started nowhere.
        earlier = {kind for number in range(before, attempt) for kind in world.faults.get(number, ())}
        # A cut connection may be noticed when the next attempt runs already.
        clean = earlier <= free | {"worker"}
        # Without a lease the number of an attempt that reached no pod may be used again.
        once = world.started.count(attempt + 1) == 1
        recovery = recoveries.get(attempt + 1) if once else None
        # A pod that left before may be missed only now.
        alone = earlier <= {"worker"}
        if alone and faults == {"worker"} and attempt in world.failed:
            surely += 1
            kind = "InPlace" if "twin" not in ever else recovery["kind"] if recovery else ""
            if recovery and (recovery["reason"], recovery["kind"], recovery["counted"]) != ("WorkerFailed", kind, True):
                world.fail(f"a worker of attempt {attempt} failed, but the recovery is {recovery}")
        if clean and faults and faults <= free and recovery and (recovery["kind"] == "InPlace" or recovery["counted"]):
            world.fail(f"attempt {attempt} broke by {faults} alone, but the recovery is {recovery}")
    at_most = sum(kind not in free for kinds in world.faults.values() for kind in kinds)
    if not surely <= final["restarts"]["counted"] <= at_most:
        world.fail(f"{surely} to {at_most} restarts cost budget, but {final['restarts']['counted']} are counted")
