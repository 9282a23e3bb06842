"""What the simulator's worlds are made of: workers, links, and pods with the real machines in them. See simulator.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dtj_agent import names
from dtj_agent.coordinator import Coordinator
from dtj_agent.history import History
from dtj_agent.member import Identity, Member

if TYPE_CHECKING:
    from tests.agent.simulator import World

UID = "job-uid"


class Worker:
    def __init__(self, rank: int, attempt: int) -> None:
        self.rank = rank
        self.attempt = attempt
        self.asked = False
        self.exit_code: int | None = None
        self.held = False
        """In a system call that no signal ends."""


class Link:
    """A member's connection to a coordinator's agent. Delivery in order; nothing after it broke."""

    serial = 0

    def __init__(self, pod: Pod, hub: Pod) -> None:
        Link.serial += 1
        self.number = Link.serial
        self.pod, self.hub = pod, hub
        self.agents = (pod.life, hub.life)
        self.up = True
        self.next_free = {True: 0.0, False: 0.0}


class Pod:
    """A pod of the StatefulSet; `life` counts its agent processes, so that what was meant for a dead one is not delivered.

    `generation` counts the pods of its ordinal. One that was replaced may live on as a twin of the pod that the API knows.
    """

    def __init__(self, world: World, ordinal: int, generation: int = 0) -> None:
        self.world, self.ordinal, self.generation = world, ordinal, generation
        self.is_twin = False
        self.hint: Pod | None = None
        """Where the coordinator was last said to be."""
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
            UID, self.ordinal, f"{self}.{self.life}", f"j-{self.ordinal}", "n", f"10.{self.generation}.0.{self.ordinal}", 3.0
        )
        self.member = Member(me, dict(self.saved), self.final)
        self.member.port = world.rng.randrange(20000, 30000)
        self.coordinator = None
        if self.ordinal == 0:
            history = History.from_json(self.member.history.to_json())
            self.coordinator = Coordinator(world.rules, history, self.final, world.now())
        world.after(0.0, self.life_of(self.dial))
        world.after(1.0, self.life_of(self.second))

    def __str__(self) -> str:
        return f"{self.ordinal}" + "'" * self.generation

    def life_of(self, call: Callable[[], None]) -> Callable[[], None]:
        """The call, if this very agent process still lives by then."""
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
            self.world.coordinator_does(self, self.coordinator.tick(self.world.now()))
            self.call_missing()
        elif self.link is None:
            self.ask_around()

    # --- calls, as agent.py and announce.py make them ------------------------------------------------------------

    def call_missing(self) -> None:
        world, coordinator = self.world, self.coordinator
        if coordinator is None:  # it crashed in the middle of the tick
            return
        for ordinal in [o for o in range(1, world.replicas) if o not in coordinator.peers]:
            world.call(self, world.lookup(ordinal), lambda other, started=coordinator.announced: other.called(self, started))  # type: ignore[misc]
        if coordinator.is_replaced and world.lookup(0) is self:
            world.coordinator_does(self, coordinator.named(world.now()))

    def ask_around(self) -> None:
        others = [ordinal for ordinal in range(1, self.world.replicas) if ordinal != self.ordinal]
        for ordinal in self.world.rng.sample(others, min(len(others), names.ANNOUNCE_FANOUT)):
            self.world.call(self, self.world.lookup(ordinal), lambda other: other.asked(self))

    def called(self, caller: Pod, started: int) -> None:
        """A coordinator says where it is, and is answered with the attempt that is known here."""
        if self.member.follows(started) or self.world.lookup(0) is caller:
            self.go_to(caller)
        known = self.member.known_attempt
        self.world.call(self, caller, lambda hub: hub.heard_of(known))

    def heard_of(self, attempt: int) -> None:
        if self.coordinator is not None:
            self.world.coordinator_does(self, self.coordinator.heard_of(attempt, self.world.now()))

    def asked(self, caller: Pod) -> None:
        """A member that has no coordinator asks where it is."""
        link = self.link
        if link is not None:
            self.world.call(self, caller, lambda other: other.go_to(link.hub) if other.link is None else None)

    def go_to(self, hub: Pod) -> None:
        if self.link is not None and self.link.hub is hub:
            return
        self.hint = hub
        if self.link is not None:
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
            world.member_does(self, self.member.connected(world.now()))
        else:
            world.after(world.rng.uniform(0.05, 1.0), self.life_of(self.dial))

    def send_up(self, message: dict[str, Any]) -> None:
        if self.link is not None:
            self.world.deliver(self.link, True, message)

    def kill(self) -> None:
        """The agent process and, with it, the container: all its workers are dead at once."""
        self.alive = False
        self.world.workers_die(self, list(self.workers.values()))
        self.workers = {}
        for link in [*self.conns.values(), *([self.link] if self.link else [])]:
            self.world.cut(link)
