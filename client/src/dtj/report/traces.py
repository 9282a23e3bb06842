"""The overlap of communication with computation in a trace of torch.profiler. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dtj.report.values import mapping, mappings, number, text

NAME = re.compile(r"trace-rank(\d+)-(\d+)-(\d+)\.json")
"""The files that `telemetry.profile` writes: rank, first step, the step after the last one."""
MICROSECOND = 1e-6
Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceOverlap:
    """Seconds of one rank in a recorded window of steps."""

    rank: int
    first: int
    """First step recorded."""
    last: int
    """The step after the last one recorded."""
    span: float
    """From the first event to the last one."""
    computation: float
    """At least one kernel ran that is no collective; without a device, at least one operator of torch."""
    communication: float
    """At least one collective was in flight."""
    overlapped: float
    """Both."""

    @property
    def exposed(self) -> float:
        """Seconds of communication behind which nothing was computed."""
        return self.communication - self.overlapped

    @property
    def steps(self) -> int:
        """Number of steps recorded."""
        return max(1, self.last - self.first)


def trace_overlap(document: object, name: str) -> TraceOverlap | None:
    """Returns what a trace shows; None for a file of another form or name.

    With a device, the kernels count: those of NCCL and RCCL are collectives. Without one, gloo's own records of
    its collectives count beside the operators of torch (`aten::`). The method is that of Holistic Trace Analysis,
    where overlap is the time in which both kinds run.
    """
    named = NAME.fullmatch(name)
    events = [event for event in mappings(mapping(document).get("traceEvents")) if event.get("ph") == "X"]
    on_device = any(event.get("cat") == "kernel" for event in events)
    computing: list[Interval] = []
    sending: list[Interval] = []
    begin, end = float("inf"), 0.0
    for event in events:
        at, lasting, kind = number(event.get("ts")), number(event.get("dur")), event.get("cat")
        if at is None or lasting is None or lasting < 0 or kind not in ("kernel", "cpu_op", "user_annotation"):
            continue
        begin, end = min(begin, at), max(end, at + lasting)
        found = _kind(event, on_device)
        if found is not None:
            (sending if found else computing).append((at, at + lasting))
    if named is None or end <= begin:
        return None
    computed, sent = _union(computing), _union(sending)
    return TraceOverlap(
        rank=int(named[1]),
        first=int(named[2]),
        last=int(named[3]),
        span=(end - begin) * MICROSECOND,
        computation=_length(computed) * MICROSECOND,
        communication=_length(sent) * MICROSECOND,
        overlapped=_common(computed, sent) * MICROSECOND,
    )


def _kind(event: dict[str, Any], on_device: bool) -> bool | None:
    """Returns True for a collective, False for computation, None for anything else."""
    name, kind = text(event.get("name")), event.get("cat")
    if on_device:
        return ("nccl" in name.lower() or "rccl" in name.lower()) if kind == "kernel" else None
    if kind == "user_annotation":
        return True if name.startswith("gloo:") else None
    return False if kind == "cpu_op" and name.startswith("aten::") else None


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """Returns the same time as intervals that don't touch, in order."""
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def _length(intervals: Iterable[Interval]) -> float:
    return sum(end - begin for begin, end in intervals)


def _common(one: list[Interval], other: list[Interval]) -> float:
    """Returns the time that two lists of separate, ordered intervals share."""
    total, at, to = 0.0, 0, 0
    while at < len(one) and to < len(other):
        total += max(0.0, min(one[at][1], other[to][1]) - max(one[at][0], other[to][0]))
        if one[at][1] < other[to][1]:
            at += 1
        else:
            to += 1
    return total
