"""Which failure broke an attempt: when one rank dies the others fail of that, and each agent tells only of its own. Pure."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional

from dtj_agent.group.diagnose import CRASH_SIGNALS, diagnose, signal_name
from dtj_agent.group.messages import Now
from dtj_contract import names
from dtj_contract.names import Reason

Json = Dict[str, Any]

LOSSES = {
    Reason.POD_LOST: "pod %s was lost",
    Reason.AGENT_CRASHED: "the agent in pod %s died and came back",
    Reason.CONNECTION_LOST: "the connection to pod %s was lost and came back",
    Reason.WORKER_STUCK: "the workers of pod %s can't be ended: the pod has to be replaced: ",
}


class Loss(NamedTuple):
    """A member that went away during an attempt."""

    incarnation: str
    pod: str
    node: str
    rank: int
    """The first of its ranks."""
    reason: str = Reason.POD_LOST
    what: str = ""
    """More about it, from the member itself."""


def is_evidence(raw: Any) -> bool:
    """Does it hold what `root` needs? It came over the network."""
    return isinstance(raw, dict) and isinstance(raw.get("rank"), int) and isinstance(raw.get("exitCode"), int)


def root(evidence: List[Json], attempt: int, progressed: bool, now: Now) -> Optional[Json]:
    """The first cause, as /status shows a failure: a permanent error before all, then a crash, then what arrived first."""
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
        failures.append((not found.permanent, failure["signal"] not in CRASH_SIGNALS, place, failure))
    return min(failures, key=lambda item: item[:3])[3] if failures else None


def of_loss(ordinal: int, loss: Loss, attempt: int, now: Now) -> Json:
    """A lost pod as a failure: no worker of it has said anything."""
    where = loss.pod + (" on node %s" % loss.node if loss.node else "")
    return {
        "attempt": attempt, "rank": loss.rank, "ordinal": ordinal, "pod": loss.pod, "node": loss.node, "exitCode": None,
        "signal": None, "reason": loss.reason,
        "message": LOSSES[loss.reason] % where + loss.what, "time": now.wall, "logTail": "",
    }  # fmt: skip
