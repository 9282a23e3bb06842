"""/status: what the operator and the client read. Pure."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from dtj_agent.group.coordinator import Coordinator
from dtj_agent.group.history import History
from dtj_agent.group.member import Member
from dtj_agent.group.messages import Now
from dtj_agent.settings import Settings

Json = Dict[str, Any]
STATUS_VERSION = 1


def of_coordinator(settings: Settings, coordinator: Coordinator, now: Now) -> Json:
    """The whole picture."""
    members = [
        {"ordinal": peer.ordinal, "pod": peer.pod, "node": peer.node, "address": peer.address, "state": peer.state}
        for _, peer in sorted(coordinator.peers.items())
    ]
    productive = coordinator.goodput.productive_seconds(now)
    return _page(
        settings, coordinator.history, coordinator.phase, coordinator.phase_reason, coordinator.phase_message(now),
        coordinator.waiting_for, members, productive, coordinator.outcome,
    )  # fmt: skip


def of_member(settings: Settings, member: Member) -> Json:
    """What an agent that is not the coordinator knows: itself, and the history as of the last heartbeat."""
    phase = {
        "idle": "Rendezvous",
        "running": "Running",
        "stopping": "Stopping",
        "stuck": "Stopping",
        "done": "Running",
        "finished": "Finished",
    }[member.state]
    waiting = [] if member.linked or member.state == "finished" else [0]
    own = {
        "ordinal": settings.ordinal,
        "pod": settings.pod,
        "node": settings.node,
        "address": settings.address,
        "state": member.state,
    }
    reason = "" if member.outcome is None else str(member.outcome.get("reason"))
    told = "waiting for pod 0, the coordinator" if waiting else ""
    return _page(settings, member.history, phase, reason, told, waiting, [own], member.history.productive, member.outcome)


def _page(
    settings: Settings, history: History, phase: str, reason: str, told: str, waiting: List[int], members: List[Json],
    productive: float, outcome: Optional[Json],
) -> Json:  # fmt: skip
    return {
        "version": STATUS_VERSION, "job": settings.job, "uid": settings.uid, "ordinal": settings.ordinal,
        "attempt": history.attempt,
        "phase": phase, "phaseReason": reason, "phaseMessage": told, "waitingFor": waiting, "replicas": settings.replicas,
        "worldSize": settings.replicas * settings.processes, "members": members, "restarts": dict(history.restarts),
        "recoveries": history.recoveries, "failures": history.failures, "progress": history.progress,
        "checkpoint": history.checkpoint, "events": history.events, "productiveSeconds": round(productive, 3),
        "startTime": history.start_time, "outcome": outcome,
    }  # fmt: skip
