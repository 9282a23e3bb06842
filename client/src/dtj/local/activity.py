"""What a group does while it does not train, in words: the 30 s of a recovery are no hang. Pure."""

from __future__ import annotations

from typing import Any

from dtj_core.plan.model import Object

STARTING_AGENTS = "starting the agents"
GATHERING = "waiting for the agents to meet"
STOPPING = "stopping the workers"
STARTING = "starting the workers: importing and loading"
UNREPORTED = "no step reported yet"
FIRST_STEP = "waiting for the first step"
UNTIL_START = ("detect", "stop", "schedule", "rendezvous")  # phases of a recovery that are over when its attempt starts


def group_activity(agent: Object | None) -> str:
    """What the group does instead of training, from pod 0's `/status`; "" while it trains or has finished."""
    if agent is None:
        return STARTING_AGENTS
    phase = agent.get("phase")
    if phase == "Rendezvous":
        return str(agent.get("phaseMessage") or GATHERING)
    if phase == "Stopping":
        return STOPPING
    return _of_workers(agent) if phase == "Running" else ""


def _of_workers(agent: Object) -> str:
    progress: dict[str, Any] = agent.get("progress") or {}
    recovery = next((one for one in agent.get("recoveries") or () if one.get("attempt") == agent.get("attempt")), None)
    if recovery is None:
        return "" if "step" in progress else UNREPORTED
    spent = recovery.get("seconds") or {}
    # The agent keeps the last report of the attempt that broke, with its time.
    began = recovery.get("time", 0.0) + sum(spent.get(phase, 0.0) for phase in UNTIL_START)
    if progress.get("step") is None:
        return UNREPORTED
    if progress.get("time", 0.0) <= began:
        return STARTING
    waits = recovery.get("resumedStep") == progress["step"] and not spent.get("firstStep")
    return f"{FIRST_STEP} after step {progress['step']}" if waits else ""
