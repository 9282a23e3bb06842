"""metav1.Condition lists: a transition time changes only when a status does."""

from __future__ import annotations

from dtj_contract import names
from dtj_contract.names import Reason
from dtj_core.plan.model import Object
from dtj_core.plan.times import rfc3339

MESSAGE_LENGTH = 4096
BY_URGENCY = (names.COMPLETE, names.FAILED, names.SUSPENDED, names.RESTARTING, names.RUNNING)  # the first true one is the phase


def find(status: Object, kind: str) -> Object | None:
    return next((c for c in status.get("conditions") or () if c.get("type") == kind), None)


def is_true(status: Object, kind: str) -> bool:
    condition = find(status, kind)
    return condition is not None and condition.get("status") == "True"


def reason(status: Object, kind: str) -> str:
    """Reason of a condition, true or not; empty if there is none."""
    return str((find(status, kind) or {}).get("reason", ""))


def is_finished(status: Object) -> bool:
    """Complete or Failed: for good."""
    return is_true(status, names.COMPLETE) or is_true(status, names.FAILED)


def put(status: Object, kind: str, value: bool, why: str, message: str, *, generation: int, now: float) -> Object:
    """`status` with this condition set, and phase and reason that follow from all of them."""
    old = find(status, kind)
    text = "True" if value else "False"
    changed = old is None or old.get("status") != text
    condition = {
        "type": kind,
        "status": text,
        "observedGeneration": generation,
        "lastTransitionTime": rfc3339(now) if changed or old is None else old["lastTransitionTime"],
        "reason": why,
        "message": message[:MESSAGE_LENGTH],
    }
    others = [c for c in status.get("conditions") or () if c.get("type") != kind]
    ordered = sorted([*others, condition], key=lambda c: _place(str(c.get("type"))))
    return _with_phase({**status, "conditions": ordered})


def without(status: Object, kind: str) -> Object:
    """`status` without this condition."""
    if find(status, kind) is None:
        return status
    return {**status, "conditions": [c for c in status["conditions"] if c.get("type") != kind]}


def _place(kind: str) -> int:
    return names.CONDITIONS.index(kind) if kind in names.CONDITIONS else len(names.CONDITIONS)


def _with_phase(status: Object) -> Object:
    phase = next((kind for kind in BY_URGENCY if is_true(status, kind)), names.PENDING)
    source = names.RUNNING if phase == names.PENDING else phase
    return {**status, "phase": phase, "reason": reason(status, source) or Reason.PODS_PENDING}
