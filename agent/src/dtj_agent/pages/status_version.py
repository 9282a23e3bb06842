"""The version of /status: which changes of the page are worth an answer at once. Pure."""

from __future__ import annotations

import json
from binascii import crc32
from typing import Any, Dict, List

from dtj_contract import names
from dtj_contract.agent_status import AgentStatus

WITH_WORKERS = ("running", "done", "stopping", names.MEMBER_STUCK)
"""States of a member that has workers."""


def status_version(page: AgentStatus) -> str:
    """Returns a short text that is the same for two pages unless something that matters differs.

    Later steps, checkpoints, texts that follow the time and members that wait do not matter: they are read with the
    next answer.
    """
    outcome: Dict[str, Any] = page["outcome"] or {}
    leader: Dict[str, Any] = page["leader"] or {}
    members = [(member["ordinal"], member["state"]) for member in page["members"]]
    matters = [
        page["attempt"], page["phase"], page["phaseReason"], page["startTime"], page["replicas"], page["stepsUnknown"],
        [outcome.get(key) for key in ("attempt", "result", "reason")],
        [leader.get(key) for key in ("ordinal", "pod", "epoch")],
        sorted(page["restarts"].items()),
        [[failure.get(key) for key in ("attempt", "rank", "ordinal", "reason")] for failure in page["failures"]],
        [[recovery.get("attempt"), _known_phases(recovery)] for recovery in page["recoveries"]],
        [straggler.get("rank") for straggler in page["stragglers"]],
        [ordinal for ordinal, state in members if state == names.MEMBER_STUCK],
        sum(state in WITH_WORKERS for _, state in members),
        _known_figures(page["progress"] or {}),
        max((event.get("time", 0) for event in page["events"] if event.get("type") == "Warning"), default=0),
    ]  # fmt: skip
    return "%08x" % crc32(json.dumps(matters).encode())


def _known_figures(progress: Dict[str, Any]) -> List[bool]:
    """Returns which figures of the training are known: a user waits for the first of each."""
    steps = progress.get("step") is not None or bool(progress.get("optimizerSteps"))
    return [steps, progress.get("loss") is not None, progress.get("remainingSeconds") is not None]


def _known_phases(recovery: Dict[str, Any]) -> str:
    """Returns the phases of a recovery that have ended."""
    return " ".join(sorted(phase for phase, seconds in (recovery.get("seconds") or {}).items() if seconds))
