"""Decides which of two installations that serve the same namespace acts: no I/O, no clock, no globals.

The leader of each installation keeps a claim that names the namespaces it serves. Of two claims
that overlap, the older one acts, unless an even older one keeps it from acting. A claim counts
until it has not been renewed for `CLAIM_SECONDS`, by the clock of the one that looks.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, field

CLAIM_SECONDS = 120.0
RENEW_SECONDS = 5.0
# A claim that seems to be this old at its first sight is dead: no two clocks differ by so much. Without
# this, an installation would wait CLAIM_SECONDS for the claim of one that was uninstalled long ago.
DEAD_SECONDS = 900.0


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One installation and the namespaces that it serves. No namespaces: all of them."""

    installation: str
    namespaces: frozenset[str]
    since: str
    """When the installation began to serve them, as RFC 3339 with microseconds."""
    renewed: str
    version: str = ""

    @property
    def rank(self) -> tuple[str, str]:
        """The order of claims: the first one acts."""
        return self.since, self.installation

    def overlaps(self, other: Claim) -> bool:
        """Returns whether both serve a namespace."""
        return not self.namespaces or not other.namespaces or bool(self.namespaces & other.namespaces)

    def where(self, other: Claim) -> str:
        """Returns the namespaces that both serve, for people."""
        if self.namespaces and other.namespaces:
            return ", ".join(sorted(self.namespaces & other.namespaces))
        return ", ".join(sorted(self.namespaces | other.namespaces)) or "all namespaces"


@dataclass
class Sightings:
    """When each claim was last seen to change."""

    seen: dict[str, tuple[str, float]] = field(default_factory=dict)
    """By installation: the version, and when it was first seen."""

    def alive(self, claims: Iterable[Claim], now: float, wall: float) -> list[Claim]:
        """Returns the claims that are still renewed. `now` never jumps; `wall` is the Unix time."""
        known, self.seen = self.seen, {}
        found = []
        for claim in claims:
            version, since = known.get(claim.installation, ("", now))
            first = claim.installation not in known
            if version != claim.version:
                since = now
            if first and wall - unix(claim.renewed) > DEAD_SECONDS:
                since = now - CLAIM_SECONDS
            self.seen[claim.installation] = claim.version, since
            if now - since < CLAIM_SECONDS:
                found.append(claim)
        return found


def since(before: Claim | None, namespaces: frozenset[str], wall: float, text: str) -> str:
    """Returns since when an installation serves `namespaces`: `text`, the time now, unless it did so before.

    A claim that has lapsed, or that did not cover all of them, gives no precedence.
    """
    if before is None or wall - unix(before.renewed) > CLAIM_SECONDS:
        return text
    covered = not before.namespaces or (namespaces and namespaces <= before.namespaces)
    return before.since if covered else text


def rivals(own: Claim, others: Iterable[Claim]) -> list[Claim]:
    """Returns the claims that overlap with `own`, the first one first."""
    found = (claim for claim in others if claim.installation != own.installation and own.overlaps(claim))
    return sorted(found, key=lambda claim: claim.rank)


def acts(own: Claim, claims: Iterable[Claim]) -> bool:
    """Returns whether `own` overlaps with no older claim that acts itself."""
    acting: list[Claim] = []
    for claim in sorted({own, *claims}, key=lambda claim: claim.rank):
        if not any(claim.overlaps(other) for other in acting):
            acting.append(claim)
    return own in acting


def unix(time: str) -> float:
    """Returns the Unix time of an RFC 3339 text; 0 if it is none."""
    try:
        return datetime.datetime.fromisoformat(time).timestamp()
    except ValueError:
        return 0.0
