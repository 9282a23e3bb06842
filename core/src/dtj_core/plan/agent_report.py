"""What an agent says, from `/status` or from an outcome: only what the contract knows, with the types it promises.

A pod is not trusted: any field may be missing, of another type, too long or no finite number. Such a field is as if it
were not there, so nothing from a pod can make a status that the API server refuses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from dtj_contract import names
from dtj_contract.json_numbers import finite_number
from dtj_core.api.status import FAILURES, RECOVERIES
from dtj_core.plan.model import Object
from dtj_core.plan.times import rfc3339

Shape = dict[str, str]

FAILURE: Shape = {
    "attempt": "int", "rank": "int", "ordinal": "int", "pod": "text", "node": "text", "exitCode": "int", "signal": "text",
    "reason": "word", "message": "text", "time": "time", "logTail": "text",
}  # fmt: skip
RECOVERY: Shape = {
    "attempt": "int", "kind": "word", "reason": "word", "counted": "bool", "time": "time", "lastStep": "int",
    "resumedStep": "int", "lostSteps": "int", "seconds": "phases",
}  # fmt: skip
PROGRESS: Shape = {
    "step": "int", "totalSteps": "int", "loss": "number", "samplesPerSecond": "number", "metrics": "numbers", "time": "time",
}  # fmt: skip
CHECKPOINT: Shape = {"step": "int", "path": "text", "time": "time"}
EVENT: Shape = {"type": "word", "reason": "word", "message": "text", "time": "number"}
MEMBER: Shape = {"pod": "text", "address": "text", "state": "word"}
RESTARTS: Shape = {"inPlace": "int", "pod": "int", "counted": "int"}

WORD = re.compile(r"[A-Za-z][A-Za-z0-9]{0,63}")
MAX_INT = 2**53  # JSON numbers beyond it lose digits on the way
MAX_NUMBER = 1e300  # sums of a few stay finite; an int may be longer than any float
MAX_TIME = 4102444800  # the year 2100, which leaves room for an expected end: RFC 3339 has four digits for the year
MAX_NUMBERS = 32
MEMBERS = 4096


@dataclass(frozen=True, kw_only=True)
class Report:
    """The word of the job's agents at one moment; `{}`, `()` and None where they said nothing."""

    attempt: int
    phase: str = ""
    phase_reason: str = ""
    phase_message: str = ""
    """What the group waits for, in words."""
    start_time: float | None = None
    """When their memory begins, Unix seconds: another one means that all pods, and what they knew, were lost."""
    from_outcome: bool = False
    restarts: Object = field(default_factory=dict)
    failures: tuple[Object, ...] = ()
    recoveries: tuple[Object, ...] = ()
    progress: Object = field(default_factory=dict)
    checkpoint: Object = field(default_factory=dict)
    events: tuple[Object, ...] = ()
    productive_seconds: float = 0.0
    stuck: tuple[Object, ...] = ()
    """Members (pod, address) whose workers SIGKILL does not end."""


def from_agent(raw: object, uid: str) -> Report | None:
    """From `/status`; None if it is none of this job's."""
    if not isinstance(raw, dict) or raw.get("version") != 1 or raw.get("uid") != uid:
        return None
    return _report(raw, from_outcome=False)


def from_outcome(raw: Object) -> Report:
    """From an outcome that is known to be this job's."""
    return _report({**raw, "failures": [raw.get("failure")]}, from_outcome=True)


def _report(raw: Object, *, from_outcome: bool) -> Report:
    top = clean(
        raw, {"attempt": "int", "phase": "word", "phaseReason": "word", "phaseMessage": "text", "productiveSeconds": "number"}
    )
    start = clean(raw, {"startTime": "number"}).get("startTime")
    return Report(
        attempt=top.get("attempt", 0),
        phase=top.get("phase", ""),
        phase_reason=top.get("phaseReason", ""),
        phase_message=top.get("phaseMessage", ""),
        start_time=start,
        from_outcome=from_outcome,
        restarts=clean(raw.get("restarts"), RESTARTS),
        failures=_list(raw.get("failures"), FAILURE, FAILURES),
        recoveries=_list(raw.get("recoveries"), RECOVERY, RECOVERIES),
        progress=clean(raw.get("progress"), PROGRESS),
        checkpoint=clean(raw.get("checkpoint"), CHECKPOINT),
        events=_list(raw.get("events"), EVENT, names.KEEP_EVENTS),
        productive_seconds=top.get("productiveSeconds", 0.0),
        stuck=tuple(m for m in _list(raw.get("members"), MEMBER, MEMBERS) if m.get("state") == names.MEMBER_STUCK),
    )


def _list(raw: object, shape: Shape, newest: int) -> tuple[Object, ...]:
    items = raw if isinstance(raw, list) else []
    return tuple(item for item in (clean(entry, shape) for entry in items[-newest:]) if item)


def clean(raw: object, shape: Shape) -> Object:
    """The fields of `raw` that have the type that `shape` gives them."""
    if not isinstance(raw, dict):
        return {}
    values = {name: _clean_value(raw.get(name), kind) for name, kind in shape.items()}
    return {name: value for name, value in values.items() if value is not None}


def _clean_value(value: object, kind: str) -> object:
    if kind == "text":
        return value[: names.LOG_TAIL_BYTES] if isinstance(value, str) else None
    if kind == "word":  # a reason becomes a condition's and an event's
        return value if isinstance(value, str) and WORD.fullmatch(value) else None
    if kind == "bool":
        return value if isinstance(value, bool) else None
    if kind == "phases":
        return clean(value, dict.fromkeys(names.RECOVERY_PHASES, "number")) or None
    if kind == "numbers":
        if not isinstance(value, dict):
            return None
        numbers = {str(k)[:64]: _number(v) for k, v in list(value.items())[:MAX_NUMBERS]}
        return {k: v for k, v in numbers.items() if v is not None} or None
    number = _number(value)
    if number is None or kind == "number":
        return number
    if kind == "int":
        return int(number) if number == int(number) and abs(number) <= MAX_INT else None
    return rfc3339(number) if 0 <= number <= MAX_TIME else None


def _number(value: object) -> float | None:
    return finite_number(value, MAX_NUMBER)
