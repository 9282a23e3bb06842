"""The end of a job, as its agents report it in a termination message or in `/status`.

A termination message outlives its agent.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Literal

from dtj_contract import names
from dtj_contract.names import Reason
from dtj_core.plan.agent_report import Report, report_from_outcome, sanitize
from dtj_core.plan.job import Job
from dtj_core.plan.model import Object, Observed


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """How a job ended, and why."""

    kind: Literal["Complete", "Failed"]
    reason: str
    message: str
    report: Report | None = None
    """The last report of the agents."""
    failures: tuple[Object, ...] = field(default=())
    """Evidence that no agent could report."""
    crashes: int = 0
    """Container restarts that no agent could report."""


def find_outcome(job: Job, observed: Observed, memory: Object) -> JobResult | None:
    """Returns the valid outcome of the latest attempt, None if there is none yet.

    `memory`: what the agents were last known to remember (`status.agent`).
    """
    candidates = [
        _parse_json(text) for pod in observed.pods for text in _termination_messages(pod, job.trainer_container)
    ]
    candidates.append((observed.agent or {}).get("outcome"))
    valid = [
        raw for raw in candidates if isinstance(raw, dict) and raw.get("version") == 1 and raw.get("uid") == job.uid
    ]
    results = [
        result for raw in valid if not _is_superseded(raw, memory) and (result := _parse_outcome(raw)) is not None
    ]
    return max(results, key=_attempt, default=None)


def _is_superseded(raw: Object, memory: Object) -> bool:
    """Returns whether the agents have begun a later attempt since this outcome.

    A pod that was replaced and lives on may report how the job ended without it. Numbers are
    compared within one memory: agents that have all lost theirs begin at the first attempt again.
    Where those agents crash before it, they report an end without a start time, and nobody else
    would report one. A pod that waits alone can end the job by RendezvousTimeout only.
    """
    report, begun = report_from_outcome(raw), memory.get("startTime")
    alone = report.start_time is None and raw.get("reason") == Reason.RENDEZVOUS_TIMEOUT
    same = "startTime" in raw and (alone or report.start_time == begun)
    return same and report.attempt < memory.get("attempt", 0)


def _attempt(result: JobResult) -> int:
    return result.report.attempt if result.report else 0


def _parse_outcome(raw: Object) -> JobResult | None:
    kind = {"Succeeded": names.COMPLETE, "Failed": names.FAILED}.get(str(raw.get("result")))
    if kind is None:
        return None
    fields = sanitize(raw, {"reason": "identifier", "message": "text"})
    default = Reason.SUCCEEDED if kind == names.COMPLETE else Reason.WORKER_FAILED
    return JobResult(
        kind="Complete" if kind == names.COMPLETE else "Failed",
        reason=fields.get("reason", default),
        message=fields.get("message", ""),
        report=report_from_outcome(raw),
    )


def _termination_messages(pod: Object, container: str) -> list[str]:
    # Anybody may give a pod our labels, so only pods of a StatefulSet count. Any StatefulSet: an
    # earlier one may have been deleted after the end.
    if all(owner.get("kind") != "StatefulSet" for owner in pod["metadata"].get("ownerReferences") or ()):
        return []
    found = []
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        if status.get("name") == container:
            for state in ("state", "lastState"):
                message = ((status.get(state) or {}).get("terminated") or {}).get("message")
                if isinstance(message, str):
                    found.append(message)
    return found


def _parse_json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        # Truncated, or a message of the script itself: no outcome.
        return None
