"""The report of an agent, from `/status` or an outcome, reduced to the contract.

Only fields of the contract are kept, with the types that it promises.

A pod is not trusted: any field may be missing, of another type, too long or not a finite number.
A field like that is dropped, so nothing from a pod can make a status that the API server rejects.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from dtj_contract import agent_status, names
from dtj_contract.json_numbers import MAX_INT, finite_number
from dtj_core.api.status import FAILURES, RECOVERIES
from dtj_core.plan.model import Object
from dtj_core.plan.times import rfc3339

Shape = dict[str, str]

FAILURE: Shape = {
    "attempt": "int", "rank": "int", "ordinal": "int", "pod": "text", "node": "text", "exitCode": "int",
    "signal": "text", "reason": "identifier", "message": "text", "time": "time", "action": "identifier",
    "logTail": "text", "stack": "text",
}  # fmt: skip
RECOVERY: Shape = {
    "attempt": "int", "kind": "identifier", "reason": "identifier", "counted": "bool", "time": "time",
    "lastStep": "int", "resumedStep": "int", "lostSteps": "int", "source": "identifier",
    "seconds": "phases", "fromReplicas": "int", "toReplicas": "int",
}  # fmt: skip
PROGRESS: Shape = {
    "step": "int", "optimizerSteps": "int", "totalSteps": "int", "loss": "number", "samplesPerSecond": "number",
    "metrics": "numbers", "percent": "number", "remainingSeconds": "number", "time": "time",
}  # fmt: skip
STRAGGLER: Shape = {"rank": "int", "pod": "text", "node": "text", "ratio": "number"}
CHECKPOINT: Shape = {"step": "int", "path": "text", "time": "time"}
EVENT: Shape = {"type": "identifier", "reason": "identifier", "message": "text", "time": "number"}
MEMBER: Shape = {"ordinal": "int", "pod": "text", "address": "text", "state": "identifier"}
LEADER: Shape = {"ordinal": "int", "pod": "name", "epoch": "int"}
RESTARTS: Shape = {"inPlace": "int", "pod": "int", "counted": "int"}

IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9]{0,63}")
POD_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
# Sums of a few such numbers stay finite. An int may be larger than any float.
MAX_NUMBER = 1e300
# The year 2100 leaves room for an expected end: RFC 3339 has four digits for the year.
MAX_TIME = 4102444800
MAX_NUMBERS = 32
# States of a member that has workers.
BUSY = {"running", "done", "stopping", names.MEMBER_STUCK}
MEMBERS = 4096


@dataclass(frozen=True, kw_only=True)
class Report:
    """Report of the job's agents at one moment; `{}`, `()` and None for fields that they left out."""

    attempt: int
    phase: str = ""
    phase_reason: str = ""
    phase_message: str = ""
    """Text: what the group waits for."""
    start_time: float | None = None
    """When the agents' memory begins, Unix seconds. Another value means that all pods, and their
    memory, were lost."""
    from_outcome: bool = False
    restarts: Object = field(default_factory=dict)
    failures: tuple[Object, ...] = ()
    earlier_failures: tuple[Object, ...] = ()
    """In short, as an outcome lists those before its own: they add to what is known, and replace nothing."""
    recoveries: tuple[Object, ...] = ()
    progress: Object = field(default_factory=dict)
    steps_unknown: bool = False
    """Whether the job should have shown a step by now, and has not."""
    checkpoint: Object = field(default_factory=dict)
    events: tuple[Object, ...] = ()
    productive_seconds: float = 0.0
    stragglers: tuple[Object, ...] = ()
    stuck: tuple[Object, ...] = ()
    """Members (pod, address) whose workers SIGKILL can't end."""
    leader: str = ""
    """Name of the pod whose agent coordinates; empty: not known."""
    from_follower: bool = False
    """Whether an agent reports that does not coordinate: it knows the history, but not the group's phase."""
    is_searching: bool = False
    """Whether the agent that reports has not found the one that coordinates."""
    replicas: int | None = None
    """Pods of the current attempt, or of the next one."""
    busy: frozenset[int] = frozenset()
    """Ordinals of the pods that have workers."""


def report_from_status(raw: object, uid: str) -> Report | None:
    """Returns the report in an answer from `/status`; None if it is not from an agent of this job."""
    if not isinstance(raw, dict) or raw.get("version") != agent_status.VERSION or raw.get("uid") != uid:
        return None
    report = _report(raw, from_outcome=False)
    if not report.from_follower:
        return report
    return replace(report, progress={}, steps_unknown=False, stragglers=(), stuck=(), replicas=None, busy=frozenset())


def leader_of(raw: Object) -> Object:
    """Returns the fields of the agent that coordinates, as a page names it; {} if it names none."""
    return sanitize(raw.get("leader"), LEADER)


def report_from_outcome(raw: Object) -> Report:
    """Returns the report in an outcome that is known to be this job's."""
    report = _report({**raw, "failures": [raw.get("failure")]}, from_outcome=True)
    return replace(report, earlier_failures=_sanitize_list(raw.get("failures"), FAILURE, FAILURES))


def _report(raw: Object, *, from_outcome: bool) -> Report:
    top = sanitize(
        raw,
        {
            "attempt": "int",
            "phase": "identifier",
            "phaseReason": "identifier",
            "phaseMessage": "text",
            "productiveSeconds": "number",
            "stepsUnknown": "bool",
            "replicas": "int",
        },
    )
    start = sanitize(raw, {"startTime": "number"}).get("startTime")
    members = _sanitize_list(raw.get("members"), MEMBER, MEMBERS)
    own, leader = sanitize(raw, {"ordinal": "int"}).get("ordinal", 0), leader_of(raw)
    # Of agents before epochs, ordinal 0 coordinates.
    coordinates = leader.get("ordinal", own) == own if "leader" in raw else own == 0
    return Report(
        attempt=top.get("attempt", 0),
        phase=top.get("phase", ""),
        phase_reason=top.get("phaseReason", ""),
        phase_message=top.get("phaseMessage", ""),
        start_time=start,
        from_outcome=from_outcome,
        restarts=sanitize(raw.get("restarts"), RESTARTS),
        failures=_sanitize_list(raw.get("failures"), FAILURE, FAILURES),
        recoveries=_sanitize_list(raw.get("recoveries"), RECOVERY, RECOVERIES),
        progress=sanitize(raw.get("progress"), PROGRESS),
        steps_unknown=top.get("stepsUnknown", False),
        checkpoint=sanitize(raw.get("checkpoint"), CHECKPOINT),
        events=_sanitize_list(raw.get("events"), EVENT, names.KEEP_EVENTS),
        productive_seconds=top.get("productiveSeconds", 0.0),
        stragglers=_sanitize_list(raw.get("stragglers"), STRAGGLER, names.MAX_STRAGGLERS),
        stuck=tuple(m for m in members if m.get("state") == names.MEMBER_STUCK),
        leader=leader.get("pod", ""),
        from_follower=not coordinates,
        is_searching="leader" in raw and not leader,
        replicas=top.get("replicas"),
        busy=frozenset(m["ordinal"] for m in members if "ordinal" in m and m.get("state") in BUSY),
    )


def _sanitize_list(raw: object, shape: Shape, newest: int) -> tuple[Object, ...]:
    items = raw if isinstance(raw, list) else []
    return tuple(item for item in (sanitize(entry, shape) for entry in items[-newest:]) if item)


def sanitize(raw: object, shape: Shape) -> Object:
    """Returns the fields of `raw` whose values have the types in `shape`."""
    if not isinstance(raw, dict):
        return {}
    values = {name: _sanitize_value(raw.get(name), kind) for name, kind in shape.items()}
    return {name: value for name, value in values.items() if value is not None}


def _sanitize_value(value: object, kind: str) -> object:
    if kind == "text":
        return value[: names.LOG_TAIL_BYTES] if isinstance(value, str) else None
    # Becomes a reason of conditions and events.
    if kind == "identifier":
        return value if isinstance(value, str) and IDENTIFIER.fullmatch(value) else None
    if kind == "name":
        return value if isinstance(value, str) and POD_NAME.fullmatch(value) else None
    if kind == "bool":
        return value if isinstance(value, bool) else None
    if kind == "phases":
        return sanitize(value, dict.fromkeys(names.RECOVERY_PHASES, "number")) or None
    if kind == "numbers":
        if not isinstance(value, dict):
            return None
        numbers = {str(k)[:64]: finite_number(v, MAX_NUMBER) for k, v in list(value.items())[:MAX_NUMBERS]}
        return {k: v for k, v in numbers.items() if v is not None} or None
    number = finite_number(value, MAX_NUMBER)
    if number is None or kind == "number":
        return number
    if kind == "int":
        return int(number) if number == int(number) and abs(number) <= MAX_INT else None
    return rfc3339(number) if 0 <= number <= MAX_TIME else None
