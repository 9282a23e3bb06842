"""How agents find each other while DNS is behind: announces this agent, and answers peers that announce themselves."""

from __future__ import annotations

from typing import Any, Callable, List, Optional

from dtj_agent.coordinator_shell import CoordinatorShell
from dtj_agent.group.member import Member
from dtj_agent.group.messages import Message
from dtj_agent.net.announce import Announcer
from dtj_agent.net.coordinator_link import CoordinatorLink
from dtj_agent.net.link import Link
from dtj_agent.net.loop import Loop
from dtj_agent.net.resolver import Resolver
from dtj_agent.settings import Address, AgentSettings


class PeerDiscovery:
    """Keeps the link to the coordinator pointed at the pod that holds pod 0's name.

    `shell`: the coordinator's, in the agent of pod 0; None elsewhere.
    """

    def __init__(
        self,
        loop: Loop,
        resolver: Resolver,
        settings: AgentSettings,
        incarnation: str,
        port: int,
        member: Member,
        coordinator_link: CoordinatorLink,
        shell: Optional[CoordinatorShell],
    ) -> None:
        self._resolver = resolver
        self._settings = settings
        self._own_address: Address = (settings.address, port)
        self._member = member
        self._link = coordinator_link
        self._shell = shell
        self._is_resolving = False
        self._announcer = Announcer(loop, resolver, settings, incarnation, port, self._on_direction)
        if shell is not None:
            self._announcer.on_attempt = shell.heard_of

    def on_tick(self) -> None:
        """Calls the members that are missing or, in a member without a coordinator, asks some peers for it."""
        if self._shell is not None:
            coordinator = self._shell.coordinator
            missing = [ordinal for ordinal in range(self._settings.peer_count) if ordinal not in coordinator.peers]
            self._announcer.call(missing, coordinator.succession.announced)
            if coordinator.is_replaced:
                self._if_named(self._own_address, self._shell.named)
        elif not self._link.is_open:
            self._announcer.call_some()

    def answer(self, link: Link, message: Message) -> None:
        """Answers an `announce` with the coordinator's address, and follows the sender if it is the coordinator."""
        address = (str(message["address"]), int(message["agentPort"]))
        if message["ordinal"] == 0 and self._settings.ordinal != 0:
            if self._member.follows(message["started"]):
                self._link.move(address)
            else:
                self._if_named(address, lambda: self._link.move(address))
        known = {"coordinator": self._known_coordinator(), "attempt": self._member.known_attempt}
        link.send(dict(known, type="known"))
        link.close_when_written()

    def _on_direction(self, address: Address) -> None:
        """Dials the coordinator where a peer reported it, unless this agent has found it by now."""
        if not self._link.is_open and self._settings.ordinal != 0:
            self._link.hint(address)

    def _if_named(self, address: Address, callback: Callable[[], None]) -> None:
        """Calls back if pod 0's name resolves to `address`.

        Resolves one name at a time: a caller whose question is dropped asks again within a second.
        """

        def resolved(found: List[Address], why: str) -> None:
            self._is_resolving = False
            if address in found:
                callback()

        if not self._is_resolving:
            self._is_resolving = True
            self._resolver.resolve(self._settings.peer(0), resolved)

    def _known_coordinator(self) -> Optional[List[Any]]:
        if self._settings.ordinal == 0:
            return list(self._own_address)
        return None if self._link.address is None else list(self._link.address)
