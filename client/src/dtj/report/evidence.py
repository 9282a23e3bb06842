"""The facts that a report is drawn from, read from a job's status and its logged steps. Pure.

A status may come from any version of the operator: unknown fields are ignored, absent ones have a default.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dtj.report.samples import Sample
from dtj.report.values import integer, mapping, mappings, number, text
from dtj_contract import names
from dtj_core.plan.model import Object
from dtj_core.plan.times import unix

MAX_SAMPLES = 200_000


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
class Straggler:
    """A rank whose own work takes longer than that of the others, as the agents have found."""

    rank: int | None
    ratio: float | None
    """Its own time, to the median rank's."""
    place: str
    """Pod and node."""

    @property
    def label(self) -> str:
        """The rank and its ratio."""
        return f"rank {self.rank}" + (f": {self.ratio:.1f}x" if self.ratio is not None else "")


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
    stragglers: tuple[Straggler, ...]
    avoided: tuple[str, ...]
    """Nodes that the job avoids."""
    every_steps: int | None
    """Steps between two checkpoints, if the job states them."""

    @property
    def ranks(self) -> int:
        """Number of ranks of the group."""
        return self.replicas * self.processes


def evidence(job: Object, processes: int, samples: Iterable[Sample] = ()) -> Evidence:
    """Returns the facts in a job. Samples from before its start belong to an earlier run and are dropped."""
    status = mapping(job.get("status"))
    began = unix(status.get("startTime")) or unix(mapping(job.get("metadata")).get("creationTimestamp")) or 0.0
    ended = unix(status.get("completionTime"))
    kept = sorted((s for s in samples if s.time >= began), key=lambda s: s.time)[-MAX_SAMPLES:]
    failures = tuple(failure for one in mappings(status.get("failures")) if (failure := _failure(one)))
    recoveries = tuple(recovery for one in mappings(status.get("recoveries")) if (recovery := _recovery(one)))
    known = [unix(status.get("lastUpdateTime")) or began, *(s.time for s in kept[-1:]), *(f.time for f in failures)]
    known += [recovery.time + recovery.total for recovery in recoveries]
    progress, spec = mapping(status.get("progress")), mapping(job.get("spec"))
    return Evidence(
        name=str(mapping(job.get("metadata")).get("name", "")),
        phase=str(status.get("phase", names.PENDING)),
        reason=str(status.get("reason", "")),
        begin=began,
        # A time in a status has whole seconds; the last step may have come later in that second.
        end=max(ended if ended is not None else max(known), *(s.time for s in kept[-1:]), began + 0.001),
        replicas=max([integer(spec.get("replicas")) or 1, *(each.pods for each in recoveries)]),
        ranks_move=bool(spec.get("spares") or spec.get("elastic")),
        processes=max(1, processes),
        attempt=integer(status.get("attempt")) or 0,
        goodput=number(status.get("goodput")),
        restarts=integer(mapping(status.get("restarts")).get("total")) or 0,
        step=integer(progress.get("step")),
        total_steps=integer(progress.get("totalSteps")),
        counted_in_attempt=progress.get("stepSource") == "Optimizer",
        failures=tuple(sorted(failures, key=lambda one: one.time)),
        recoveries=tuple(sorted(recoveries, key=lambda one: one.attempt)),
        samples=tuple(kept),
        stragglers=tuple(_straggler(one) for one in mappings(status.get("stragglers"))),
        avoided=tuple(_avoided(one) for one in mappings(status.get("avoidedNodes"))),
        every_steps=integer(mapping(spec.get("checkpoint")).get("everySteps")),
    )


def _failure(raw: Object) -> Failure | None:
    time = unix(raw.get("time"))
    if time is None:
        return None
    return Failure(
        attempt=integer(raw.get("attempt")) or 0,
        time=time,
        rank=integer(raw.get("rank")),
        ordinal=integer(raw.get("ordinal")),
        reason=text(raw.get("reason")),
        message=text(raw.get("message")),
        place=_place(raw),
        decision=text(raw.get("action")),
        stack=text(raw.get("stack")),
        log_tail=text(raw.get("logTail")),
    )


def _recovery(raw: Object) -> Recovery | None:
    time, attempt = unix(raw.get("time")), integer(raw.get("attempt"))
    if time is None or not attempt:
        return None
    spent = mapping(raw.get("seconds"))
    seconds = {phase: max(0.0, number(spent.get(phase)) or 0.0) for phase in names.RECOVERY_PHASES if phase in spent}
    return Recovery(
        attempt=attempt,
        time=time,
        kind=text(raw.get("kind")),
        reason=text(raw.get("reason")),
        counted=raw.get("counted") is True,
        last_step=integer(raw.get("lastStep")),
        resumed_step=integer(raw.get("resumedStep")),
        lost_steps=integer(raw.get("lostSteps")),
        seconds=seconds,
        source=text(raw.get("source")),
        pods=min(names.MAX_PODS, max(integer(raw.get(key)) or 0 for key in ("fromReplicas", "toReplicas"))),
    )


def _straggler(raw: Object) -> Straggler:
    return Straggler(rank=integer(raw.get("rank")), ratio=number(raw.get("ratio")), place=_place(raw))


def _place(raw: Object) -> str:
    return " on ".join(part for key in ("pod", "node") if (part := text(raw.get(key))))


def _avoided(raw: Object) -> str:
    details = [text(raw.get("reason")), text(raw.get("message")), f"until {raw['until']}" if raw.get("until") else ""]
    details.append("used all the same, because no other node has room" if raw.get("lifted") else "")
    return f"{raw.get('node')} ({', '.join(part for part in details if part)})"
