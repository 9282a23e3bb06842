"""Conditions of a job's status (metav1.Condition): one object sets them, functions read them."""

from __future__ import annotations

from dataclasses import dataclass

from dtj_contract import names
from dtj_contract.names import Reason
from dtj_core.plan.model import Object
from dtj_core.plan.times import rfc3339

MESSAGE_LENGTH = 4096
PHASES = (names.COMPLETE, names.FAILED, names.SUSPENDED, names.RESTARTING, names.RUNNING)
"""Condition types by precedence: the first one that is true is the phase."""


@dataclass(frozen=True)
class Conditions:
    """Sets conditions that are decided for one generation of the job, at one time.

    `plan` makes one per call.
    """

    generation: int
    now: float

    def set(self, status: Object, kind: str, value: bool, reason: str, message: str) -> Object:
        """Returns `status` with this condition set, and with phase and reason that follow.

        The transition time changes only when the status of the condition does.
        """
        old = find_condition(status, kind)
        text = "True" if value else "False"
        changed = old is None or old.get("status") != text
        condition = {
            "type": kind,
            "status": text,
            "observedGeneration": self.generation,
            "lastTransitionTime": rfc3339(self.now) if changed or old is None else old["lastTransitionTime"],
            "reason": reason,
            "message": message[:MESSAGE_LENGTH],
        }
        others = [c for c in status.get("conditions") or () if c.get("type") != kind]
        ordered = sorted([*others, condition], key=lambda c: _place(str(c.get("type"))))
        return _with_phase({**status, "conditions": ordered})


def find_condition(status: Object, kind: str) -> Object | None:
    for condition in status.get("conditions") or ():
        if condition.get("type") == kind:
            found: Object = condition
            return found
    return None


def is_true(status: Object, kind: str) -> bool:
    condition = find_condition(status, kind)
    return condition is not None and condition.get("status") == "True"


def condition_reason(status: Object, kind: str) -> str:
    """Returns the reason of a condition, true or not; empty if there is no such condition."""
    return str((find_condition(status, kind) or {}).get("reason", ""))


def is_finished(status: Object) -> bool:
    """Returns whether the job is Complete or Failed. Both are final."""
    return is_true(status, names.COMPLETE) or is_true(status, names.FAILED)


def remove_condition(status: Object, kind: str) -> Object:
    """Returns `status` without this condition."""
    if find_condition(status, kind) is None:
        return status
    return {**status, "conditions": [c for c in status["conditions"] if c.get("type") != kind]}


def _place(kind: str) -> int:
    return names.CONDITIONS.index(kind) if kind in names.CONDITIONS else len(names.CONDITIONS)


def _with_phase(status: Object) -> Object:
    phase = next((kind for kind in PHASES if is_true(status, kind)), names.PENDING)
    source = names.RUNNING if phase == names.PENDING else phase
    return {**status, "phase": phase, "reason": condition_reason(status, source) or Reason.PODS_PENDING}
