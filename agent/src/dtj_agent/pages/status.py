"""/status, which the operator and the client read (dtj_contract.agent_status). Pure."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

from dtj_agent.group.coordinator import Coordinator
from dtj_agent.group.election import Leader
from dtj_agent.group.history import History
from dtj_agent.group.member import Member
from dtj_agent.group.messages import Now
from dtj_agent.settings import AgentSettings
from dtj_contract import agent_status
from dtj_contract.agent_status import AgentStatus

Json = Dict[str, Any]
PHASE_OF_MEMBER = {
    "idle": agent_status.RENDEZVOUS,
    "running": agent_status.RUNNING,
    "stopping": agent_status.STOPPING,
    "stuck": agent_status.STOPPING,
    "done": agent_status.RUNNING,
    "finished": agent_status.FINISHED,
}


def coordinator_status(
    settings: AgentSettings, coordinator: Coordinator, leader: Optional[Leader], now: Now
) -> AgentStatus:
    """Returns the page of the agent that leads: the whole group."""
    members = [
        {"ordinal": peer.ordinal, "pod": peer.pod, "node": peer.node, "address": peer.address, "state": peer.state}
        for _, peer in sorted(coordinator.peers.items())
    ]
    productive = coordinator.goodput.productive_seconds(now)
    final = coordinator.outcome if coordinator.ending.is_certain(now) else None
    return _page(
        settings, coordinator.history, coordinator.phase, coordinator.phase_reason, coordinator.phase_message(now),
        coordinator.waiting_for, members, productive, final, leader,
        coordinator.goodput.steps_unknown(now), coordinator.lifecycle.stragglers(), coordinator.size,
    )  # fmt: skip


def member_status(settings: AgentSettings, member: Member, leader: Optional[Leader]) -> AgentStatus:
    """Returns the page of any other agent: itself, and the history as of the last heartbeat."""
    own = {
        "ordinal": settings.ordinal,
        "pod": settings.pod,
        "node": settings.node,
        "address": settings.address,
        "state": member.state,
    }
    reason = "" if member.outcome is None else str(member.outcome.get("reason"))
    is_alone = not member.linked and member.state != "finished"
    message = "looking for the agent that coordinates" if is_alone else ""
    return _page(
        settings, member.history, PHASE_OF_MEMBER[member.state], reason, message, [], [own],
        member.history.productive, member.outcome, leader,
    )  # fmt: skip


def _page(
    settings: AgentSettings, history: History, phase: str, reason: str, message: str, waiting: List[int],
    members: List[Json], productive: float, outcome: Optional[Json], leader: Optional[Leader],
    steps_unknown: bool = False, stragglers: Sequence[Json] = (), size: int = 0,
) -> AgentStatus:  # fmt: skip
    replicas = size or len(history.members) or settings.replicas
    return {
        "version": agent_status.VERSION, "job": settings.job, "uid": settings.uid, "ordinal": settings.ordinal,
        "attempt": history.attempt, "phase": phase, "phaseReason": reason, "phaseMessage": message,
        "waitingFor": waiting, "replicas": replicas, "worldSize": replicas * settings.processes,
        "members": members, "restarts": dict(history.restarts), "recoveries": history.recoveries,
        "failures": history.failures, "progress": history.progress, "stepsUnknown": steps_unknown,
        "checkpoint": history.checkpoint,
        "events": history.events, "productiveSeconds": round(productive, 3), "startTime": history.start_time,
        "outcome": outcome, "leader": _leader(settings, leader), "stragglers": list(stragglers),
    }  # fmt: skip


def _leader(settings: AgentSettings, leader: Optional[Leader]) -> Optional[Json]:
    if leader is None:
        return None
    pod = "%s-%d" % (settings.job, leader.ordinal)
    return {"ordinal": leader.ordinal, "pod": pod, "address": leader.address[0], "epoch": leader.epoch}
