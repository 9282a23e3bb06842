"""The parts of the simulator's worlds: workers, links, pods, a network.

simulator.py puts the parts together.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dtj_agent.group import effects as coordinator_effects
from dtj_agent.group import election, member
from dtj_agent.group.coordinator import Coordinator
from dtj_agent.group.election import Election, Leader
from dtj_agent.group.history import History
from dtj_agent.group.member import Identity, Member
from dtj_agent.group.messages import Now, check
from dtj_contract import names

if TYPE_CHECKING:
    from tests.unit.agent.simulator import World

UID, WALL, AWAY_SECONDS = "job-uid", 1_700_000_000.0, 12.0


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
        self.address = (f"10.{generation}.0.{ordinal}", 29400)
        self.dialled = 0
        self.epoch = 0
        """The leader's epoch, as far as known here."""
        self.life = 0
        self.alive = False
        self.saved: dict[str, Any] = {}
        self.final: dict[str, Any] | None = None
        self.workers: dict[int, Worker] = {}
        self.link: Link | None = None
        self.member: Any = None
        self.election: Any = None
        self.coordinator: Coordinator | None = None
        self.conns: dict[int, Link] = {}
        self.leaving = False
        self.is_gone = False
        """The agent has exited; what it has sent is still on its way."""

    def boot(self) -> None:
        world = self.world
        self.life += 1
        self.alive, self.leaving, self.is_gone, self.link, self.conns = True, False, False, None, {}
        me = Identity(
            UID,
            self.ordinal,
            f"{self}.{self.life}",
            f"j-{self.ordinal}",
            "n",
            self.address[0],
            3.0,
            success_policy=world.spec.success_policy,
        )
        self.member = Member(me, dict(self.saved), self.final)
        self.member.port = world.rng.randrange(20000, 30000)
        self.coordinator, self.epoch = None, 0
        self.has_led = False
        self.election = Election(Leader(self.ordinal, me.incarnation, self.address), world.replicas)
        world.after(0.0, self.life_of(lambda: self.elect(self.election.start(world.time))))
        world.after(0.1, self.life_of(self.look))
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
            coordinator = self.coordinator
            beat = {"type": "beat", "live": coordinator.history.live(), "epoch": coordinator.epoch.number}
            for link in list(self.conns.values()):
                self.world.deliver(link, False, beat)
            self.world.coordinator_does(self, coordinator.tick(self.world.now(self)))
            for ordinal in range(self.world.replicas):
                if self.coordinator is coordinator and ordinal not in coordinator.peers and ordinal != self.ordinal:
                    self.call(ordinal)

    def look(self) -> None:
        self.world.after(0.1, self.life_of(self.look))
        self.elect(self.election.tick(self.world.time))

    # --- the election, as leadership.py runs it -------------------------------------------------------------------

    def elect(self, effects: list[election.Effect]) -> None:
        world, life = self.world, self.life
        for effect in effects:
            if not self.alive or self.life != life:
                return
            if isinstance(effect, election.Call):
                for ordinal in effect.ordinals:
                    self.call(ordinal)
            elif isinstance(effect, election.Dial):
                self.dial(effect.leader)
            elif isinstance(effect, election.Lead):
                history = History.from_json(self.member.history.to_json())
                self.coordinator = Coordinator(world.spec, history, self.final, world.now(self), self.ordinal)
                self.coordinator.hands_over, self.has_led = not self.has_led, True
                self.inform()
            else:
                world.log_line(f"  {self} steps down: {effect.why}")
                self.drop(effect.leader)

    def drop(self, leader: Leader | None) -> None:
        """Ends the leadership: the members' links close, with a hint at the new leader."""
        self.coordinator = None
        links, self.conns = list(self.conns.values()), {}
        for link in links:
            if leader is not None and link.pod is not self:
                self.world.deliver(link, False, {"type": "known", "leader": leader.to_json()})
            self.world.after(0.25, lambda link=link: self.world.cut(link))  # type: ignore[misc]

    def inform(self) -> None:
        """Passes on to the election what this agent knows."""
        if self.coordinator is not None:
            self.epoch = self.coordinator.epoch.number
            attempt = max(self.coordinator.history.attempt, self.member.known_attempt)
        else:
            attempt = self.member.known_attempt
        self.election.knows(attempt, self.epoch)

    def leader(self) -> Leader | None:
        self.inform()
        return self.election.leader

    def call(self, ordinal: int) -> None:
        """Calls a peer; a leader names itself."""
        world, now = self.world, self.world
        other = world.lookup(ordinal)
        leads = self.leader() if self.coordinator is not None else None

        def arrive() -> None:
            if leads is not None:
                other.inform()
                other.elect(other.election.called(leads))
            named = other.leader()
            attempt = other.member.known_attempt
            world.after(
                world.rng.choice((0.0, 0.01, 0.2)) * world.rng.random(),
                self.life_of(lambda: self.answered(ordinal, other.election.me, named, attempt)),
            )

        def fail() -> None:
            self.elect(self.election.failed(ordinal, now.time))

        def reach() -> None:
            if other.alive and world.reachable(self, other) and not other.leaving:
                arrive()
            else:
                world.after(world.rng.choice((0.0, 3.0)), self.life_of(fail))

        world.after(world.rng.choice((0.0, 0.01, 0.2)) * world.rng.random(), self.life_of(reach))

    def answered(self, ordinal: int, peer: Leader, leader: Leader | None, attempt: int) -> None:
        if self.coordinator is not None:
            self.world.coordinator_does(self, self.coordinator.heard_of(attempt, self.world.now(self)))
        self.inform()
        self.elect(self.election.answered(peer._replace(ordinal=ordinal), leader, self.world.time))

    def find(self, leader: Leader) -> Pod | None:
        """Returns the pod that the leader's address leads to."""
        return next((pod for pod in self.world.everyone if pod.address == leader.address), None)

    def dial(self, leader: Leader) -> None:
        world = self.world
        if self.link is not None:
            link, self.link = self.link, None
            world.leave(link)
            world.member_does(self, self.member.disconnected(0.0, world.now(self)))
        self.epoch = leader.epoch
        self.dialled += 1
        dialled = self.dialled

        def unanswered(link: Link) -> bool:
            return self.link is link and self.election.state == election.SEARCHING

        def reach() -> None:
            if self.dialled != dialled or self.link is not None:
                return
            hub = self.find(leader)
            if (
                hub is not None
                and hub.alive
                and world.reachable(self, hub)
                and not (hub.leaving and hub.coordinator is None)
            ):
                link = self.link = Link(self, hub)
                world.after(names.PEER_DEAD_SECONDS, lambda: world.cut(link) if unanswered(link) else None)
                world.member_does(self, self.member.connected(world.now(self)))
            else:
                world.after(world.rng.choice((0.0, 3.0)), self.life_of(fail))

        def fail() -> None:
            if self.dialled == dialled and self.link is None:
                self.elect(self.election.closed(False, world.time))

        world.after(0.0 if leader.incarnation == self.election.me.incarnation else 0.002, self.life_of(reach))

    def hello(self, link: Link, message: dict[str, Any]) -> None:
        """Handles the hello of an agent that has dialled this one."""
        world = self.world
        if self.coordinator is None:
            self.elect(self.election.asked_to_lead(message["ordinal"], message["incarnation"]))
        if self.coordinator is not None:
            self.conns[link.number] = link
            world.coordinator_does(self, self.coordinator.joined(link.number, message, world.now(self)))
            return
        leader = self.leader()
        if leader is not None:
            world.deliver(link, False, {"type": "known", "leader": leader.to_json()})
        world.after(0.25, lambda: world.cut(link))

    def heard(self, link: Link, message: dict[str, Any]) -> None:
        """Handles a message of the agent that this one has dialled."""
        if self.link is not link:
            return
        if message["type"] == "known":
            leader = Leader.from_json(message.get("leader"))
            if leader is not None:
                self.elect(self.election.redirected(leader, self.world.time))
            return
        self.election.joined()
        self.epoch = max(self.epoch, message.get("epoch", 0))
        self.world.member_does(self, self.member.received(message, self.world.now(self)))

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

    def deliver(self, link: Link, up: bool, message: dict[str, Any]) -> None:
        message = dict(check(message))
        at = max(link.next_free[up], self.time + self.rng.choice((0.0, 0.001, 0.01, 0.2)) * self.rng.random())
        link.next_free[up] = at

        def arrive() -> None:
            if not link.up or not self.same_lives(link):
                return
            if not up:
                link.pod.heard(link, message)
            elif message["type"] == "hello":
                link.hub.hello(link, message)
            elif link.hub.coordinator is not None and link.number in link.hub.conns:
                self.coordinator_does(link.hub, link.hub.coordinator.received(link.number, message, self.now(link.hub)))

        self.after(at - self.time, arrive)

    def same_lives(self, link: Link) -> bool:
        return (link.pod.life, link.hub.life) == link.agents and link.pod.alive and link.hub.alive

    def bring_back(self, pod: Pod, keep_disk: bool, longest: float = AWAY_SECONDS) -> None:
        pod.kill()
        if not keep_disk:
            pod.saved, pod.final = {}, None
        away = self.rng.uniform(0.1, longest)
        self.after(away, lambda: None if pod.alive or pod not in self.everyone else pod.boot())

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
        self.after(self.rng.choice((0.0, 0.01)), self._notice(link, link.hub, link.agents[1], 0.0))

    def _notice(self, link: Link, pod: Pod, life: int, silence: float) -> Callable[[], None]:
        def run() -> None:
            if not pod.alive or pod.life != life:
                return
            if pod is link.pod and pod.link is link:
                pod.link = None
                self.member_does(pod, pod.member.disconnected(silence, self.now(pod)))
                if pod.alive and pod.life == life:
                    pod.elect(pod.election.closed(True, self.time))
            if pod is link.hub and pod.conns.pop(link.number, None) is not None:
                assert pod.coordinator is not None
                self.coordinator_does(pod, pod.coordinator.left(link.number, silence, self.now(pod)))

        return run
