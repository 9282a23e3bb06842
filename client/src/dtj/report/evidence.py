"""The facts that a report is drawn from, read from a job's status and its logged steps. Pure.

A status may come from any version of the operator: unknown fields are ignored, absent ones have a default.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dtj_contract import names
from dtj_core.plan.model import Object
from dtj_core.plan.times import unix

MAX_SAMPLES = 200_000
_PAIR = re.compile(r"([A-Za-z_]+)=(-?[0-9.eE+-]+|nan|inf)(?=\s|,|$)")
_RANK = re.compile(r"\[rank \d+\] ")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One logged step."""

    time: float
    step: int
    attempt: int
    loss: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A failure that ended an attempt."""

    attempt: int
    time: float
    rank: int | None
    ordinal: int | None
    reason: str
    message: str
    place: str
    """Pod and node."""
    decision: str
    """Action of the rule that decided, or ""."""
    stack: str
    log_tail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovery:
    """A restart of the group: the attempt that it led to, and its seconds by phase."""

    attempt: int
    time: float
    kind: str
    reason: str
    counted: bool
    last_step: int | None
    resumed_step: int | None
    lost_steps: int | None
    seconds: dict[str, float]
    source: str
    """Origin of the state that the attempt resumed from, or ""."""
    pods: int = 0
    """The larger number of pods before and after, if it has changed; else 0."""

    @property
    def total(self) -> float:
        """Seconds from the last good moment to the first step."""
        return sum(self.seconds.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Everything that a report shows."""

    name: str
    phase: str
    reason: str
    begin: float
    end: float
    replicas: int
    processes: int
    attempt: int
    goodput: float | None
    restarts: int
    step: int | None
    total_steps: int | None
    ranks_move: bool
    """Pods have spares or come and go, so the ranks of a pod are not known from its ordinal."""
    counted_in_attempt: bool
    """The agents count the steps of a script that reports none, from 0 in each attempt."""
    failures: tuple[Failure, ...]
    recoveries: tuple[Recovery, ...]
    samples: tuple[Sample, ...]
    stragglers: tuple[str, ...]
    avoided: tuple[str, ...]
    """Nodes that the job avoids."""

    @property
    def ranks(self) -> int:
        """Number of ranks of the group."""
        return self.replicas * self.processes


def evidence(job: Object, processes: int, samples: Iterable[Sample] = ()) -> Evidence:
    """Returns the facts in a job. Samples from before its start belong to an earlier run and are dropped."""
    status = _dict(job.get("status"))
    began = unix(status.get("startTime")) or unix(_dict(job.get("metadata")).get("creationTimestamp")) or 0.0
    ended = unix(status.get("completionTime"))
    kept = sorted((s for s in samples if s.time >= began), key=lambda s: s.time)[-MAX_SAMPLES:]
    failures = tuple(failure for one in _dicts(status.get("failures")) if (failure := _failure(one)))
    recoveries = tuple(recovery for one in _dicts(status.get("recoveries")) if (recovery := _recovery(one)))
    known = [unix(status.get("lastUpdateTime")) or began, *(s.time for s in kept[-1:]), *(f.time for f in failures)]
    known += [recovery.time + recovery.total for recovery in recoveries]
    progress, spec = _dict(status.get("progress")), _dict(job.get("spec"))
    return Evidence(
        name=str(_dict(job.get("metadata")).get("name", "")),
        phase=str(status.get("phase", names.PENDING)),
        reason=str(status.get("reason", "")),
        begin=began,
        # A time in a status has whole seconds; the last step may have come later in that second.
        end=max(ended if ended is not None else max(known), *(s.time for s in kept[-1:]), began + 0.001),
        replicas=max([_int(spec.get("replicas")) or 1, *(each.pods for each in recoveries)]),
        ranks_move=bool(spec.get("spares") or spec.get("elastic")),
        processes=max(1, processes),
        attempt=_int(status.get("attempt")) or 0,
        goodput=_number(status.get("goodput")),
        restarts=_int(_dict(status.get("restarts")).get("total")) or 0,
        step=_int(progress.get("step")),
        total_steps=_int(progress.get("totalSteps")),
        counted_in_attempt=progress.get("stepSource") == "Optimizer",
        failures=tuple(sorted(failures, key=lambda one: one.time)),
        recoveries=tuple(sorted(recoveries, key=lambda one: one.attempt)),
        samples=tuple(kept),
        stragglers=tuple(_straggler(one) for one in _dicts(status.get("stragglers"))),
        avoided=tuple(_avoided(one) for one in _dicts(status.get("avoidedNodes"))),
    )


def metrics_samples(text: str) -> list[Sample]:
    """Returns the steps in a metrics file. Lines that are torn or of another form are skipped."""
    found = []
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and (sample := _sample(row.get("time"), row)):
            found.append(sample)
    return found


def log_samples(lines: Iterable[tuple[float, str]], attempts: Iterable[tuple[float, int]] = ()) -> list[Sample]:
    """Returns the steps in lines such as `[rank 0] step=20 loss=0.5`, given with their times.

    `attempts` holds the time at which each attempt began to load; a line belongs to the last one before it.
    """
    begun = sorted(attempts)
    found = []
    for when, line in lines:
        pairs: dict[str, Any] = {key: _parsed(value) for key, value in _PAIR.findall(_RANK.sub("", line, count=1))}
        pairs["attempt"] = max((attempt for since, attempt in begun if since <= when), default=1)
        if sample := _sample(when, pairs):
            found.append(sample)
    return found


def _sample(when: object, row: dict[str, Any]) -> Sample | None:
    time, step = _number(when), _int(row.get("step"))
    if time is None or step is None:
        return None
    return Sample(time=time, step=step, attempt=_int(row.get("attempt")) or 1, loss=_number(row.get("loss")))


def _failure(raw: Object) -> Failure | None:
    time = unix(raw.get("time"))
    if time is None:
        return None
    return Failure(
        attempt=_int(raw.get("attempt")) or 0,
        time=time,
        rank=_int(raw.get("rank")),
        ordinal=_int(raw.get("ordinal")),
        reason=_text(raw.get("reason")),
        message=_text(raw.get("message")),
        place=" on ".join(part for key in ("pod", "node") if (part := _text(raw.get(key)))),
        decision=_text(raw.get("action")),
        stack=_text(raw.get("stack")),
        log_tail=_text(raw.get("logTail")),
    )


def _recovery(raw: Object) -> Recovery | None:
    time, attempt = unix(raw.get("time")), _int(raw.get("attempt"))
    if time is None or not attempt:
        return None
    spent = _dict(raw.get("seconds"))
    seconds = {phase: max(0.0, _number(spent.get(phase)) or 0.0) for phase in names.RECOVERY_PHASES if phase in spent}
    return Recovery(
        attempt=attempt,
        time=time,
        kind=_text(raw.get("kind")),
        reason=_text(raw.get("reason")),
        counted=raw.get("counted") is True,
        last_step=_int(raw.get("lastStep")),
        resumed_step=_int(raw.get("resumedStep")),
        lost_steps=_int(raw.get("lostSteps")),
        seconds=seconds,
        source=_text(raw.get("source")),
        pods=min(names.MAX_PODS, max(_int(raw.get(key)) or 0 for key in ("fromReplicas", "toReplicas"))),
    )


def _straggler(raw: Object) -> str:
    ratio = _number(raw.get("ratio"))
    return f"rank {raw.get('rank')}" + (f": {ratio:.1f}x" if ratio is not None else "")


def _avoided(raw: Object) -> str:
    details = [_text(raw.get("reason")), f"until {raw['until']}" if raw.get("until") else ""]
    details.append("used all the same, because no other node has room" if raw.get("lifted") else "")
    return f"{raw.get('node')} ({', '.join(part for part in details if part)})"


def _parsed(text: str) -> float | int | None:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300 or math.isnan(value):
        return None
    return float(value)


def _int(value: object) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number == int(number) and 0 <= number < 2**53 else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _dict(value: object) -> Object:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _dicts(value: object) -> list[Object]:
    return [one for one in _list(value) if isinstance(one, dict)]
