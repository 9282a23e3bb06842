"""Describes and reports what the group waits for. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dtj_agent.group.lifecycle import PHASE_RENDEZVOUS, PHASE_STOPPING
from dtj_agent.group.messages import Now
from dtj_agent.group.roster import listed

if TYPE_CHECKING:
    from dtj_agent.group.coordinator import Coordinator


def describe(group: Coordinator, now: Now) -> str:
    """Returns the most important thing that the group waits for; "" if it waits for nothing that has a name."""
    ending = group.ending.describe(now)
    if group.phase == PHASE_STOPPING:
        pods = [peer.pod for peer in group.lifecycle.stopping]
        return "waiting for the workers of %s to terminate" % listed(pods, len(pods)) if pods else ending
    if group.phase != PHASE_RENDEZVOUS:
        return ""
    absent = ending or group.formation.waiting(group.history, now)
    return absent or group.lease.trouble or _pause(group, now) or group.epoch.waiting(group.history.attempt, now)


def report_lease_trouble(group: Coordinator, reason: str, why: str, now: Now) -> None:
    """Reports, once for each reason, that there is no lease for the next attempt."""
    if group.phase_reason != reason:
        group.history.event("Warning", reason, why, now.wall)
        group.lifecycle.phase_reason = reason
        group.outbox.log("the lease can't be written: %s" % why)


def _pause(group: Coordinator, now: Now) -> str:
    moving = group.lifecycle.moving.name(group.ordinal, now)
    if moving:
        return "waiting for %s to be replaced on another node" % moving
    pause = group.policy.not_before - now.mono
    return "the next attempt starts in %.0f s" % pause if pause > 0 else ""
