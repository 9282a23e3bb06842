"""Describes what a group does while it does not train. Pure.

Without such a line the 30 s of a recovery would look like a hang.
"""

from __future__ import annotations

from dtj_contract import agent_status
from dtj_core.plan.model import Object
from dtj_core.plan.progress import with_step

STARTING_AGENTS = "starting the agents"
GATHERING = "waiting for all agents to join"
STOPPING = "stopping the workers"
STARTING = "starting the workers: importing and loading"
UNREPORTED = "no step reported yet"
FIRST_STEP = "waiting for the first step"
# The phases of a recovery that are over when its attempt starts.
UNTIL_START = ("detect", "stop", "schedule", "rendezvous")


def group_activity(agent: Object | None) -> str:
    """Returns what the group does instead of training, from the `/status` of the agent
    that coordinates.

    Returns "" while the group trains or has finished.
    """
    if agent is None:
        return STARTING_AGENTS
    phase = agent.get("phase")
    if phase == agent_status.RENDEZVOUS:
        return str(agent.get("phaseMessage") or GATHERING)
    if phase == agent_status.STOPPING:
        return STOPPING
    return _workers_activity(agent) if phase == agent_status.RUNNING else ""


def _workers_activity(agent: Object) -> str:
    progress = with_step(agent.get("progress") or {})
    attempt = agent.get("attempt")
    recovery = next((each for each in agent.get("recoveries") or () if each.get("attempt") == attempt), None)
    if recovery is None:
        return "" if "step" in progress else UNREPORTED
    spent = recovery.get("seconds") or {}
    # The agent keeps the last report of the failed attempt, with its time.
    began = recovery.get("time", 0.0) + sum(spent.get(phase, 0.0) for phase in UNTIL_START)
    if "step" not in progress:
        return UNREPORTED
    if progress.get("time", 0.0) <= began:
        return STARTING
    waits = recovery.get("resumedStep") == progress["step"] and not spent.get("firstStep")
    return f"{FIRST_STEP} after step {progress['step']}" if waits else ""
