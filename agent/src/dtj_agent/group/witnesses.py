"""Decides which connected agents can vouch for what has happened before. Pure.

A pod that was replaced has lost its promises with its disk. If it counted towards a majority like
every other, two majorities could share just this ordinal, and promise one number twice. One of these
must hold before it counts:

    nobody here remembers or has heard anything, as at the first start
    all pods vouch, each by its own answer: one that is only thought to be here may have vouched elsewhere
    a leader has taught it, because a majority of the others was heard after it had joined
    a minute has passed since it joined, so that a group that has lost its memory is not lost too

The rule is that of a recovering replica in Viewstamped Replication Revisited (Liskov and Cowling,
2012, section 4.3). The minute is our own: a group of trainers that waits for ever helps nobody.
"""

from __future__ import annotations

from typing import AbstractSet, List, Set

from dtj_agent.group.messages import Now
from dtj_agent.group.roster import Peer, Roster, listed
from dtj_contract import names


class Witnesses:
    """Tells the agents that remember from those that have lost their memory."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    @property
    def are_all_new(self) -> bool:
        """Whether nobody here remembers anything, or has heard of a past of the job."""
        return len(self._roster.forgetful) == len(self._roster.peers) and not self._roster.has_past

    def are_majority(self, ordinals: AbstractSet[int], now: Now) -> bool:
        """Returns whether those of `ordinals` that can vouch are a majority of the job's pods."""
        return self._roster.is_majority(ordinals) if self.are_all_new else self.remember(ordinals, now)

    def remember(self, ordinals: AbstractSet[int], now: Now) -> bool:
        """Returns the same for a job that is known to have a past."""
        strangers = self._strangers(now)
        are_all = len(ordinals) >= self._roster.pods
        return self._roster.is_majority(ordinals if are_all or not strangers else ordinals - strangers)

    def to_teach(self) -> List[Peer]:
        """Returns the agents that may count from now on, because enough others were heard after they had joined."""
        return [peer for peer in self._roster.forgetful.values() if self._has_majority_since(peer)]

    def _has_majority_since(self, stranger: Peer) -> bool:
        peers = self._roster.peers.values()
        return self._roster.is_majority({p.ordinal for p in peers if p.remembers and p.heard > stranger.since})

    def waiting(self, now: Now) -> str:
        """Returns that the group waits for the strangers to count; "" if there are none."""
        strangers = sorted(self._strangers(now))
        if not strangers:
            return ""
        peers = [self._roster.peers[ordinal] for ordinal in strangers]
        left = max(peer.since for peer in peers) + names.FIRST_START_SECONDS - now.mono
        pods = listed([peer.pod for peer in peers], len(peers))
        return "too few of the pods here remember the last attempt (new: %s); continuing in %.0f s" % (pods, left)

    def _strangers(self, now: Now) -> Set[int]:
        since = now.mono - names.FIRST_START_SECONDS
        return {ordinal for ordinal, peer in self._roster.forgetful.items() if peer.since > since}
