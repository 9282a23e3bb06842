"""The timeline of a job: what each rank did when, and which steps were lost. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from dtj.report.evidence import Evidence, Failure, Recovery
from dtj.report.samples import Sample
from dtj_contract import names


class State(StrEnum):
    """The state of a rank during a span; the value is its text in a legend."""

    LOAD = "loading (until the first step)"
    STEPS = "steps that count"
    LOST = "steps lost"
    STALL = "standing still, not noticed yet"
    STOP = "stopping"
    WAIT = "waiting (pods, rendezvous)"
    DOWN = "failed rank: dead or stuck"
    UNKNOWN = "recovery without a record"


PHASES = {
    "detect": State.STALL,
    "stop": State.STOP,
    "schedule": State.WAIT,
    "rendezvous": State.WAIT,
    "load": State.LOAD,
    "firstStep": State.LOAD,
}


@dataclass(frozen=True, slots=True)
class Span:
    """One state of one or more ranks, from `begin` to `end` in Unix seconds."""

    begin: float
    end: float
    state: State
    attempt: int


@dataclass(frozen=True, slots=True)
class Row:
    """Neighbouring ranks with the same spans."""

    first: int
    last: int
    spans: tuple[Span, ...]

    @property
    def label(self) -> str:
        """Names of the ranks."""
        return f"rank {self.first}" if self.first == self.last else f"ranks {self.first}-{self.last}"


@dataclass(frozen=True, slots=True)
class Timeline:
    """Rows from rank 0 upwards."""

    rows: tuple[Row, ...]
    attempts: tuple[tuple[float, int], ...]
    """Begin of the training of each attempt."""


def timeline(facts: Evidence, separate: int = 32) -> Timeline:
    """Returns the timeline. More than `separate` ranks share a row with neighbours that did the same."""
    spans = group_spans(facts)
    own = dict.fromkeys(range(facts.ranks), spans)
    for recovery in facts.recoveries:
        cause = cause_of(recovery, facts.failures)
        for rank in ranks_of(cause, facts) if cause else ():
            own[rank] = _with_failure(own[rank], recovery)
    rows: list[Row] = []
    for rank, found in own.items():
        if facts.ranks > separate and rows and rows[-1].spans == found:
            rows[-1] = Row(rows[-1].first, rank, found)
        else:
            rows.append(Row(rank, rank, found))
    begins = {span.attempt: span.begin for span in reversed(spans) if span.state in (State.STEPS, State.LOST)}
    return Timeline(tuple(rows), tuple((begin, attempt) for attempt, begin in sorted(begins.items())))


def cause_of(recovery: Recovery, failures: Sequence[Failure]) -> Failure | None:
    """Returns the failure that a recovery followed."""
    return next((one for one in failures if one.attempt == recovery.attempt - 1 and one.reason == recovery.reason),
                next((one for one in failures if one.attempt == recovery.attempt - 1), None))  # fmt: skip


def ranks_of(failure: Failure, facts: Evidence) -> range:
    """Returns the ranks of a failure: one rank, those of its pod, or none."""
    if failure.rank is not None:
        return range(failure.rank, min(failure.rank + 1, facts.ranks))
    # A spare may have the ranks of any pod.
    if failure.ordinal is not None and failure.ordinal < facts.replicas and not facts.ranks_move:
        return range(failure.ordinal * facts.processes, (failure.ordinal + 1) * facts.processes)
    return range(0)


def group_spans(facts: Evidence) -> tuple[Span, ...]:
    """Returns what the group did, in order, without gaps, from the job's begin to its end."""
    spans: list[Span] = []
    trained, attempt = _first_step(facts), 1
    if trained > facts.begin:
        spans.append(Span(facts.begin, trained, State.LOAD, 1))
    for broke, over, recovery in _breaks(facts):
        spans += _training(facts, attempt, trained, broke)
        spans += recovery
        attempt, trained = recovery[-1].attempt, over
    spans += _training(facts, attempt, trained, facts.end)
    return _joined(spans, facts)


def _joined(spans: Sequence[Span], facts: Evidence) -> tuple[Span, ...]:
    """Returns the spans without gaps and overlaps, which records of different clocks can have."""
    found, at = [], facts.begin
    for span in spans:
        end = min(max(span.end, at), facts.end)
        if end > at:
            found.append(Span(at, end, span.state, span.attempt))
            at = end
    if at < facts.end:
        found.append(Span(at, facts.end, State.STEPS, found[-1].attempt if found else 1))
    return tuple(found)


Break = tuple[float, float, list[Span]]
"""When the group broke, when it trained again, and the spans between, at least one."""


def _breaks(facts: Evidence) -> list[Break]:
    found = [_break_of(recovery, facts) for recovery in facts.recoveries]
    recorded = {recovery.attempt for recovery in facts.recoveries}
    for before, after in pairwise(facts.samples):
        # A status keeps the newest records only; a restart before them shows in the steps alone.
        if after.attempt > before.attempt and not recorded & set(range(before.attempt + 1, after.attempt + 1)):
            found.append((before.time, after.time, [Span(before.time, after.time, State.UNKNOWN, after.attempt)]))
    ordered: list[Break] = []
    for broke, over, spans in sorted(found, key=lambda one: one[0]):
        floor = ordered[-1][1] if ordered else facts.begin
        broke = max(broke, floor)
        moved = [Span(max(s.begin, broke), max(s.end, broke), s.state, s.attempt) for s in spans]
        ordered.append((broke, max(over, broke), moved))
    return ordered


def _break_of(recovery: Recovery, facts: Evidence) -> Break:
    """Returns the place of a recovery in time.

    Its time has whole seconds, so the logged steps before and after it narrow it down.
    """
    before = max((s.time for s in facts.samples if s.attempt < recovery.attempt), default=recovery.time)
    after = min((s.time for s in facts.samples if s.attempt >= recovery.attempt), default=facts.end)
    broke = min(max(_last_step_time(recovery, facts), recovery.time), recovery.time + 1.0, after - recovery.total)
    broke = max(broke, before if before <= after else recovery.time)
    spans, at = [], broke
    for phase in names.RECOVERY_PHASES:
        if length := recovery.seconds.get(phase, 0.0):
            spans.append(Span(at, min(at + length, facts.end), PHASES[phase], recovery.attempt))
            at = spans[-1].end
    return broke, at, spans or [Span(broke, broke, State.WAIT, recovery.attempt)]


def _last_step_time(recovery: Recovery, facts: Evidence) -> float:
    """Returns when the last step before a recovery was done, extrapolated from the logged steps before it."""
    logged = [sample for sample in facts.samples if sample.attempt < recovery.attempt][-2:]
    if len(logged) < 2 or recovery.last_step is None or logged[1].step <= logged[0].step:
        return recovery.time
    pace = (logged[1].time - logged[0].time) / (logged[1].step - logged[0].step)
    return logged[1].time + pace * (recovery.last_step - logged[1].step)


def _first_step(facts: Evidence) -> float:
    """Returns when the first attempt did its first step, extrapolated from its first two logged steps.

    Without logged steps, the loading of the first attempt has no known end and counts as training.
    """
    first = [sample for sample in facts.samples if sample.attempt == 1][:2]
    if not first:
        return facts.begin
    pace = 0.0
    if len(first) == 2 and first[1].step > first[0].step:
        pace = (first[1].time - first[0].time) / (first[1].step - first[0].step)
    return max(facts.begin, first[0].time - pace * first[0].step)


def _training(facts: Evidence, attempt: int, begin: float, end: float) -> list[Span]:
    """Returns the training of an attempt: the part that counts, and the part that a later restart lost."""
    later = [r.resumed_step for r in facts.recoveries if r.attempt > attempt and r.resumed_step is not None]
    later += _resumed_without_record(facts, attempt)
    own = [sample for sample in facts.samples if sample.attempt == attempt]
    kept = min(later, default=None)
    if kept is None:
        return [Span(begin, end, State.STEPS, attempt)]
    lost_at = min(max(begin, _time_of(kept, own, attempt, facts, begin, end)), end)
    return [Span(begin, lost_at, State.STEPS, attempt), Span(lost_at, end, State.LOST, attempt)]


def _resumed_without_record(facts: Evidence, attempt: int) -> list[int]:
    """Returns the step before the first logged one of each later attempt that no record describes."""
    recorded = {recovery.attempt for recovery in facts.recoveries}
    firsts: dict[int, int] = {}
    for sample in facts.samples:
        firsts.setdefault(sample.attempt, sample.step)
    return [max(0, step - 1) for later, step in firsts.items() if later > attempt and later not in recorded]


def _time_of(step: int, own: Sequence[Sample], attempt: int, facts: Evidence, begin: float, end: float) -> float:
    """Returns when an attempt reached a step: between logged steps, else in proportion."""
    resumed = next((r.resumed_step for r in facts.recoveries if r.attempt == attempt), 0 if attempt == 1 else None)
    broken = next((r.last_step for r in facts.recoveries if r.attempt == attempt + 1), None)
    known = [(sample.time, sample.step) for sample in own]
    if resumed is not None:
        known.insert(0, (begin, resumed))
    if broken is not None and (not known or broken > known[-1][1]):
        known.append((end, broken))
    if known and step < known[0][1]:
        return begin
    for (since, low), (until, high) in pairwise(known):
        if low <= step <= high:
            return since + (until - since) * (step - low) / max(1, high - low)
    return end


def _with_failure(spans: tuple[Span, ...], recovery: Recovery) -> tuple[Span, ...]:
    """Returns the spans of a rank that failed: it is down until its next process loads."""
    down = (State.STALL, State.STOP, State.WAIT)
    return tuple(
        Span(span.begin, span.end, State.DOWN, span.attempt)
        if span.attempt == recovery.attempt and span.state in down
        else span
        for span in spans
    )
