"""The JSON that an agent serves as /status, and that the operator and the client read.

The readers trust no pod: `dtj_core.plan.agent_report` checks every field before it is used.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, TypedDict

VERSION = 1

# `GET /status?after=STATUS_VERSION&wait=SECONDS` is answered once the page's statusVersion is another one, at the
# latest after the seconds, or up to one second less, and keeps the connection for the next request. An agent that
# does not know the parameters answers at once and closes the connection.
MAX_WAIT_SECONDS = 45
# Requests that wait at the same time; one more ends the wait of the oldest.
MAX_WAITING = 8
# From a response on a kept connection to the next request.
KEPT_SECONDS = 15.0

# Phases of a group.
RENDEZVOUS = "Rendezvous"
RUNNING = "Running"
STOPPING = "Stopping"
FINISHED = "Finished"
PHASES = (RENDEZVOUS, RUNNING, STOPPING, FINISHED)


class _Version(TypedDict, total=False):
    statusVersion: str
    """Changes with the phase, the attempt, a failure, the outcome, the leader and whatever else is worth an answer
    at once; mere progress does not change it. Absent in the pages of older versions, which answer at once."""


class AgentStatus(_Version):
    """The page. The coordinator's has all members; another agent's has that agent alone. Times in Unix seconds."""

    version: int
    job: str
    uid: str
    ordinal: int
    """Of the agent that answers."""
    attempt: int
    phase: str
    """One of PHASES."""
    phaseReason: str
    """Why the group does not run, or what the running attempt recovered from; "" for neither."""
    phaseMessage: str
    """The cause of a wait, as a sentence for people; "" if the group waits for nothing."""
    waitingFor: List[int]
    """Ordinals that are missing."""
    replicas: int
    """Pods of the attempt, or of the next one while the group gathers; spares are members beyond them."""
    worldSize: int
    members: List[Dict[str, Any]]
    """Connected agents: ordinal, pod, node, address, state."""
    restarts: Dict[str, int]
    """inPlace, pod, and counted: those that cost budget."""
    recoveries: List[Dict[str, Any]]
    failures: List[Dict[str, Any]]
    progress: Optional[Dict[str, Any]]
    """The last step that the script reported, and `optimizerSteps`: those that the agent counted in this attempt."""
    stepsUnknown: bool
    """Whether the attempt has run for a while, and the job has never shown a step of either kind."""
    checkpoint: Optional[Dict[str, Any]]
    events: List[Dict[str, Any]]
    productiveSeconds: float
    startTime: Optional[float]
    """When the group's memory begins."""
    outcome: Optional[Dict[str, Any]]
    leader: Optional[Dict[str, Any]]
    """The agent that coordinates, as far as this agent knows: ordinal, pod, address, epoch. None: not found yet.

    The page of any other agent has nothing but itself in `members`: ask the leader. Absent in the
    pages of older versions, where ordinal 0 coordinates.
    """
    stragglers: List[Dict[str, Any]]
    """Slow ranks of the running attempt: rank, pod, node, ratio to the median rank."""
