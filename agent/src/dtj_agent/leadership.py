"""The shell around the election: calls peers, keeps the link to the leader, and makes the coordinator."""

from __future__ import annotations

from typing import Callable, List, Optional

from dtj_agent.coordinator_shell import CoordinatorShell
from dtj_agent.group import effects, election
from dtj_agent.group.election import LEADING, SEARCHING, Election, Leader
from dtj_agent.group.member import Member
from dtj_agent.group.messages import Message
from dtj_agent.net.announce import Announcer
from dtj_agent.net.coordinator_link import CoordinatorLink
from dtj_agent.net.link import Link
from dtj_agent.net.loop import Loop
from dtj_agent.net.resolver import Resolver
from dtj_agent.settings import Address, AgentSettings

LOOK_SECONDS = 0.1
"""Between two looks at the calls of a search."""


class Leadership:
    """`make_shell`: makes the coordinator; `learn`: gives the member a newer history."""

    def __init__(
        self,
        loop: Loop,
        resolver: Resolver,
        settings: AgentSettings,
        member: Member,
        link: CoordinatorLink,
        own_address: Address,
        make_shell: Callable[[], CoordinatorShell],
        learn: Callable[[Message], None],
        log: Callable[[str], None],
    ) -> None:
        self.shell: Optional[CoordinatorShell] = None
        """While this agent leads."""
        self.on_message: Callable[[Message], None] = lambda message: None
        """Gets the coordinator's messages to the member."""
        self._loop = loop
        self._resolver = resolver
        self._settings = settings
        self._member = member
        self._link = link
        self._own_address = own_address
        self._make_shell = make_shell
        self._learn = learn
        self._log = log
        self._epoch = 0
        self._has_led = False
        self._logged_reason = ""
        me = member.identity
        address = (settings.address, own_address[1])
        self._election = Election(Leader(me.ordinal, me.incarnation, address), settings.peer_count)
        self._announcer = Announcer(loop, resolver, settings)
        self._announcer.on_answer, self._announcer.on_failed = self._answered, self._failed
        self._is_looking = False
        link.on_message = self._received
        link.on_ended = lambda was_open: self._do(self._election.closed(was_open, loop.clock()))

    def start(self) -> None:
        """Begins to search for the leader."""
        self._do(self._election.start(self._loop.clock()))

    def leave(self) -> None:
        """Notes that the pod terminates: an attempt that this agent led would end with it."""
        self._election.is_leaving = True

    def on_tick(self) -> None:
        """Lets the coordinator do what is due about once a second, and calls the members that are missing."""
        if self.shell is not None:
            self.shell.on_tick()
        self._call_missing()

    @property
    def leader(self) -> Optional[Leader]:
        """The agent that leads, as far as this one knows."""
        self._inform()
        return self._election.leader

    def _inform(self) -> None:
        """Gives the election what this agent knows, by which it compares leaders."""
        coordinator = None if self.shell is None else self.shell.coordinator
        known = self._member.known_attempt
        if coordinator is not None:
            self._epoch, known = coordinator.epoch.number, max(known, coordinator.history.attempt)
        self._election.knows(known, self._epoch)

    def accept(self, link: Link, message: Message) -> None:
        """Serves an agent that dialled this one; its first message shows why."""
        if message.get("uid") != self._settings.uid or message["type"] not in ("announce", "hello"):
            link.close("an agent of another job")
            return
        self._remember(message)
        if message["type"] == "announce":
            caller = Leader.from_json(message.get("leader"))
            if caller is not None:
                self._inform()
                self._do(self._election.called(caller))
        elif self.shell is None and not self._member.leaving:
            self._do(self._election.asked_to_lead(message["ordinal"], message["incarnation"]))
        if message["type"] == "hello" and self.shell is not None:
            self.shell.join(link, message)
            return
        link.send(self._known())
        link.close_when_written()

    def _remember(self, message: Message) -> None:
        """Keeps the address of an agent that calls: it may have to be called while DNS has no answer."""
        ordinal, address = message.get("ordinal"), message.get("address")
        if isinstance(ordinal, int) and isinstance(address, str):
            settings = self._settings
            if 0 <= ordinal < settings.callable_peers(settings.most_peers):
                peer = settings.peer(ordinal)
                self._resolver.remember(peer, (address, peer[1]))

    # --- effects ----------------------------------------------------------------------------------

    def _do(self, new: List[election.Effect]) -> None:
        for effect in new:
            if isinstance(effect, election.Call):
                self._announcer.call(effect.ordinals, self._announcement())
            elif isinstance(effect, election.Dial):
                self._epoch = effect.leader.epoch
                is_own = effect.leader.incarnation == self._member.identity.incarnation
                self._link.dial(self._own_address if is_own else effect.leader.address)
            elif isinstance(effect, election.Lead):
                self._log("this agent coordinates the group")
                self.shell = self._make_shell()
                self.shell.on_step_down = self._stepped_down
                # Once: the lowest ordinal may answer too late to be elected.
                self.shell.coordinator.hands_over = not self._has_led
                self._has_led = True
                self._call_missing()
            else:
                self._step_down(effect)
        if not self._is_looking:
            self._look()

    def _step_down(self, effect: election.StepDown) -> None:
        self._log("this agent coordinates the group no longer: " + effect.why)
        shell, self.shell = self.shell, None
        if shell is not None:
            leader = None if effect.leader is None else effect.leader.to_json()
            shell.drop({"type": "known", "leader": leader})
        self._link.leave()

    def _stepped_down(self, effect: effects.StepDown) -> None:
        if effect.history is not None:
            self._learn(effect.history)
        self._do(self._election.stepped_down(effect.why, self._loop.clock()))

    def _look(self) -> None:
        """Follows the time as long as the election does."""
        self._is_looking = self._election.state == SEARCHING or not self._link.is_open
        if self._is_looking:
            self._loop.later(LOOK_SECONDS, self._tick)

    def _tick(self) -> None:
        self._do(self._election.tick(self._loop.clock()))
        self._look()

    # --- calls ------------------------------------------------------------------------------------

    def _call_missing(self) -> None:
        if self.shell is not None:
            there = self.shell.coordinator.peers
            pods = self._settings.callable_peers(self.shell.coordinator.roster.pods)
            missing = [ordinal for ordinal in range(pods) if ordinal not in there]
            self._announcer.call(missing, self._announcement())

    def _announcement(self) -> Message:
        me = self._member.identity
        return {
            "type": "announce", "uid": me.uid, "ordinal": me.ordinal, "incarnation": me.incarnation,
            "address": self._settings.address, "agentPort": self._own_address[1],
            "leader": self._named() if self._election.state == LEADING else None,
        }  # fmt: skip

    def _known(self) -> Message:
        me, member = self._election.me.to_json(), self._member
        known = {"leader": self._named(), "attempt": member.known_attempt, "leaving": member.leaving}
        return {"type": "known", "me": me, **known}

    def _named(self) -> Optional[Message]:
        leader = self.leader
        return None if leader is None else leader.to_json()

    def _answered(self, ordinal: int, answer: Message) -> None:
        attempt, peer = answer.get("attempt"), Leader.from_json(answer.get("me"))
        if peer is None:
            self._failed(ordinal, "")
            return
        if self.shell is not None and isinstance(attempt, int):
            self.shell.heard_of(attempt)
        leader = Leader.from_json(answer.get("leader"))
        if leader is None and answer.get("leaving") is True:
            self._failed(ordinal, "")
            return
        self._inform()
        self._do(self._election.answered(peer._replace(ordinal=ordinal), leader, self._loop.clock()))

    def _failed(self, ordinal: int, reason: str) -> None:
        # A peer that is not there is normal for a while; one that rejects the secret is always wrong.
        if "secret" in reason and reason != self._logged_reason:
            self._logged_reason = reason
            self._log("a call to the agent of ordinal %d failed: %s" % (ordinal, reason))
        self._do(self._election.failed(ordinal, self._loop.clock()))

    def _received(self, message: Message) -> None:
        """Handles a message of the agent that this one has dialled."""
        if message["type"] == "known":
            leader = Leader.from_json(message.get("leader"))
            if leader is not None:
                self._do(self._election.redirected(leader, self._loop.clock()))
            return
        self._election.joined()
        epoch = message.get("epoch")
        if isinstance(epoch, int):
            self._epoch = max(self._epoch, epoch)
        self.on_message(message)
