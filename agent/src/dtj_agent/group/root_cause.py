"""Finds the failure that broke an attempt. Pure.

When one rank dies, the others fail of that, and each agent reports only its own.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional

from dtj_agent.group.diagnosis import CRASH_SIGNALS, diagnose, signal_name
from dtj_agent.group.messages import Now
from dtj_contract import names
from dtj_contract.names import Reason

Json = Dict[str, Any]

LOSS_MESSAGES = {
    Reason.POD_LOST: "pod %s was lost",
    Reason.AGENT_CRASHED: "the agent in pod %s crashed and was restarted",
    Reason.AGENT_TERMINATED: "SIGTERM ended the agent in pod %s, although the pod stayed: does the script signal its"
    " parent, or a liveness probe fail?",
    Reason.CONNECTION_LOST: "the connection to pod %s was lost and restored",
    Reason.POD_DELETED: "pod %s was deleted",
    Reason.POD_EVICTED: "pod %s was evicted",
    Reason.PREEMPTED: "pod %s was preempted",
    Reason.NODE_LOST: "pod %s was lost with its node",
    Reason.OOM_KILLED: "the container of pod %s ran out of memory, and the kernel killed it with its agent",
    Reason.WORKER_STUCK: "the workers of pod %s can't be killed; the pod must be replaced: ",
}


class Loss(NamedTuple):
    """A member that went away during an attempt."""

    incarnation: str
    pod: str
    node: str
    rank: int
    """The first of its ranks."""
    reason: str = Reason.POD_LOST
    detail: str = ""
    """The member's own report."""
    address: str = ""
    """Tells the pod from the one that replaces it."""
    own_fault: bool = False
    """Perhaps that of the training: the kubelet evicted the pod for what it used, or the node restarted under it."""


def is_evidence(raw: Any) -> bool:
    """Returns whether `raw`, which came over the network, holds what `find` reads."""
    return isinstance(raw, dict) and isinstance(raw.get("rank"), int) and isinstance(raw.get("exitCode"), int)


def find(evidence: List[Json], attempt: int, progressed: bool, pod_lost: bool, now: Now) -> Optional[Json]:
    """Returns the root cause among workers that failed; None if no worker is to blame.

    The failure has the form that /status shows. A permanent error goes first, then a lost pod
    (`pod_lost`: the survivors failed of that), then a crash, then the failure that arrived first.
    """
    failures = []
    for place, raw in enumerate(evidence):
        code, tail = raw["exitCode"], str(raw.get("logTail") or "")[-names.LOG_TAIL_BYTES :]
        recorded = raw["recorded"][:300] if isinstance(raw.get("recorded"), str) else None
        found = diagnose(raw["rank"], code, tail, bool(raw.get("oom")), progressed, recorded)
        failure = {
            "attempt": attempt, "rank": raw["rank"], "ordinal": raw["ordinal"], "pod": raw["pod"], "node": raw["node"],
            "exitCode": code, "signal": signal_name(code), "reason": found.reason, "message": found.message,
            "time": now.wall, "logTail": tail,
        }  # fmt: skip
        if not found.sure:
            failure["unsure"] = True
        failures.append((not found.permanent, failure["signal"] not in CRASH_SIGNALS, place, failure))
    if not failures:
        return None
    curable, _, _, first = min(failures, key=lambda item: item[:3])
    return None if curable and pod_lost else first


def loss_failure(ordinal: int, loss: Loss, attempt: int, now: Now) -> Json:
    """Returns a lost member as a failure without a worker's evidence."""
    where = loss.pod + (" on node %s" % loss.node if loss.node else "")
    failure = {
        "attempt": attempt, "rank": loss.rank, "ordinal": ordinal, "pod": loss.pod, "node": loss.node, "exitCode": None,
        "signal": None, "reason": loss.reason,
        "message": LOSS_MESSAGES[loss.reason] % where + loss.detail, "time": now.wall, "logTail": "",
    }  # fmt: skip
    return {**failure, "ownFault": True} if loss.own_fault else failure
