"""Admits agents to the group, or rejects them. Pure."""

from __future__ import annotations

from dtj_agent.group.group_spec import GroupSpec
from dtj_agent.group.messages import PROTOCOL_VERSION, STUCK, Message, Now
from dtj_agent.group.roster import Roster
from dtj_contract import names

ALIVE_SECONDS = 2 * names.HEARTBEAT_SECONDS
"""An agent that was heard of within this time is alive."""


class Admission:
    """Checks the hello of an agent that has connected."""

    def __init__(self, spec: GroupSpec, roster: Roster) -> None:
        self._spec = spec
        self._roster = roster
        self._last = ""

    def rejection(self, hello: Message, now: Now) -> str:
        """Returns why the agent may not join; "" if it may."""
        if hello["uid"] != self._spec.uid:
            return "an agent of another job (uid %.60s)" % hello["uid"]
        if hello.get("version") != PROTOCOL_VERSION:
            text = "%s: its agent has version %.20r of the protocol, this one %d; use one agent image in all pods"
            return text % (hello["pod"], hello.get("version"), PROTOCOL_VERSION)
        # The pod of a stuck member is to be replaced, although its agent lives.
        old = self._roster.peers.get(hello["ordinal"])
        if old is None or old.incarnation == hello["incarnation"] or old.state == STUCK:
            return ""
        alive = now.mono - old.heard < ALIVE_SECONDS
        return "a second agent of ordinal %d while the first is alive" % hello["ordinal"] if alive else ""

    def is_repeated(self, rejection: str) -> bool:
        """Returns whether the last call had this rejection too: a rejected agent dials again and again."""
        last, self._last = self._last, rejection
        return rejection == last
