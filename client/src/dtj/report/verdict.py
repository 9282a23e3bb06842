"""The policy that names what bounds a run, the number that shows it, and what to try. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dtj.quantities import percent, step_time
from dtj.report.breakdown import Breakdown, Section
from dtj.report.evidence import Evidence, Failure
from dtj.report.traces import TraceOverlap
from dtj_contract import names

SHARE = 0.10
"""Of a step. A loss that is smaller is not worth a change: without any of it the run would be 11 % faster at most."""
SLOW_RATIO = 1.3
"""Own work of a rank, to the median rank's: as in `status.stragglers`."""
MEMORY_SHARE = 0.9
"""`micro_batch_size: auto` leaves a tenth of the memory free; a run above that has less room than it would leave."""
SAVES_SHARE = 0.02
"""The share of a step that saves may cost in the advice: a fiftieth, as for memory snapshots."""


class Bound(StrEnum):
    """Causes that bound a run; the value is the text of the verdict."""

    DATA = "data-bound"
    COMMUNICATION = "communication-bound"
    SLOW_RANK = "one slow rank"
    CHECKPOINT = "checkpoint-bound"
    MEMORY = "memory-bound"
    OTHER = "bound by work outside of the measured sections"
    COMPUTE = "compute-bound"
    UNKNOWN = "not enough numbers"


ADVICE = {
    Bound.DATA: (
        "`tune: true`: tries workers and prefetching before the first step, and keeps what is fastest",
        "`data.workers`: so many processes of each rank fetch ahead; raise it until the wait for data is gone",
        "`data.prefetch`: more micro-batches ahead, if single samples take much longer than others",
        "`get_batch(indices)` in the data set: one call for a batch instead of one for each sample",
    ),
    Bound.COMMUNICATION: (
        "`communication.method: auto` (`strategy: ddp`): tries fewer bytes of gradients, and keeps the way that pays",
        "`global_batch_size`, larger: more computation for the same bytes",
        "`strategy: hsdp` instead of `strategy: fsdp`: most bytes stay within a node",
        "`strategy: local_sgd`: an exchange every few steps, for links that are slower than the step",
    ),
    Bound.SLOW_RANK: (
        "look at its node: clocks of a hot GPU, processor limits of the pod, a slow disk",
        "`spec.restart.rules` with `reasons: [Straggler]` and `action: RestartElsewhere`: replaces the pod of a rank "
        "that stays slow",
    ),
    Bound.CHECKPOINT: (
        "`state.checkpoint.asynchronous: true`, the default: the step waits for one copy, and not for the volume",
        "`strategy: fsdp`: each rank stages its own part only",
    ),
    Bound.MEMORY: (
        "`micro_batch_size: auto`: the largest that fits, the rest is accumulated",
        "`recompute: block`: activations are computed again instead of kept",
        "`strategy: fsdp` or `strategy: zero1`: each rank keeps its part of the optimizer's state, under fsdp of the "
        "weights too",
        "`activation_offload: true`, `strategy.cpu_offload: true`: on a GPU, host memory holds a part",
    ),
    Bound.OTHER: (
        "look at what runs between the steps: `after_step`, `sinks`, a loop of your own",
        "`telemetry.profile`: its trace shows what the rank does there",
    ),
    Bound.COMPUTE: (
        "`precision.dtype: bf16` and `compile: true`: the same step in less time",
        "`spec.replicas`, more: `dtj simulate` models how much faster N ranks are",
    ),
    Bound.UNKNOWN: (
        "`Trainer` measures the sections of a step; a loop of your own reports loss and samples/s alone",
        "`--metrics FILE`: the job's metrics.jsonl on its volume has what no log line has",
    ),
}
UNMEASURED = (
    "`telemetry.profile` with all ranks, then `dtj report --traces FOLDER`: on a GPU only a trace shows how long "
    "collectives were exposed",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The cause that bounds a run."""

    bound: Bound
    shown_by: str
    """The number that shows it, as a sentence without its period."""
    advice: tuple[str, ...]
    """Changes to try, the likeliest first; names of fields stand in backticks."""


@dataclass(frozen=True, slots=True)
class _Loss:
    """Time of a step that could be saved."""

    share: float
    verdict: Verdict


def verdict(facts: Evidence, mean: Breakdown | None, traces: Sequence[TraceOverlap] = ()) -> Verdict:
    """Returns what bounds a run: the first of these that holds.

    1. An attempt ran out of memory.
    2. A tenth of a step or more is lost; the largest loss counts.
    3. The agents have found a slow rank.
    4. The memory is nearly full.
    5. Communication was not measured, so nothing is known.
    6. The ranks compute all the time.
    """
    exhausted = [failure for failure in facts.failures if _ran_out_of_memory(failure)]
    if exhausted:
        text = f"{len(exhausted)} of {len(facts.failures)} failures ran out of memory ({exhausted[-1].reason})"
        return _verdict(Bound.MEMORY, text)
    if mean is None:
        return _verdict(Bound.UNKNOWN, "no logged steps have the seconds of their sections")
    worst = max(_losses(facts, mean, traces), key=lambda loss: loss.share)
    if worst.share >= SHARE:
        return worst.verdict
    slow = max((one for one in facts.stragglers if one.ratio), key=lambda one: one.ratio or 0.0, default=None)
    if slow is not None:
        return _verdict(Bound.SLOW_RANK, f"{slow.label} of the median rank's own work in a step, by the agents' clocks")
    if mean.memory_share is not None and mean.memory_share >= MEMORY_SHARE:
        return _verdict(Bound.MEMORY, f"a rank had {percent(mean.memory_share)} of its memory in use")
    computing = mean.share(Section.COMPUTE)
    if computing is None:
        return _verdict(Bound.UNKNOWN, "the time of computation was not measured")
    if _communication(mean, traces) is None and mean.ranks > 1:
        text = f"computation and communication together take {percent(computing)} of a step, and were not separated"
        return Verdict(bound=Bound.UNKNOWN, shown_by=text, advice=UNMEASURED)
    rate = "" if mean.mfu is None else f"; MFU {percent(mean.mfu)}"
    return _verdict(Bound.COMPUTE, f"{percent(computing)} of a step is computation{rate}")


def _ran_out_of_memory(failure: Failure) -> bool:
    """Returns whether the kernel killed a process for memory, or torch named the lack of it in its error."""
    return failure.reason == names.Reason.OOM_KILLED or "out of memory" in failure.message.lower()


def slow_rank(mean: Breakdown) -> tuple[int, float, float] | None:
    """Returns the rank that the others wait for: (rank, own seconds, those of the median rank). None: no such rank.

    Of two ranks, the faster one is the measure.
    """
    own = mean.own
    if len(own) < 2:
        return None
    median, most = _median(own), max(own)
    return (own.index(most), most, median) if most > SLOW_RATIO * median else None


def _losses(facts: Evidence, mean: Breakdown, traces: Sequence[TraceOverlap]) -> Iterator[_Loss]:
    """Yields the time that each cause costs. A second that others wait for a slow rank counts for that rank alone."""
    slow = slow_rank(mean)
    if slow is not None:
        rank, own, median = slow
        share = (own - median) / mean.step
        yield _Loss(share, _verdict(Bound.SLOW_RANK, _slow_text(facts, mean, rank, own, median)))
    # A device that is never idle loses no time, whatever its host waits for.
    idle = 1.0 if mean.gpu_utilization is None else 1.0 - mean.gpu_utilization
    data = _typical(mean, Section.DATA, slow is not None)
    yield _Loss(min(data, idle), _verdict(Bound.DATA, _share_text(mean, data, "waits for data")))
    sent = _communication(mean, traces)
    if sent is not None:
        share, origin = sent
        text = _share_text(mean, share, "waits in collectives") + origin
        yield _Loss(share, _verdict(Bound.COMMUNICATION, text))
    saves = mean.share(Section.CHECKPOINT) or 0.0
    yield _Loss(saves, _saves(facts, mean, saves))
    other = mean.share(Section.OTHER) or 0.0
    yield _Loss(min(other, idle), _verdict(Bound.OTHER, _share_text(mean, other, "is in no section")))


def _communication(mean: Breakdown, traces: Sequence[TraceOverlap]) -> tuple[float, str] | None:
    """Returns the exposed share of a step, without waits for a slow rank, and where it comes from."""
    if Section.COMMUNICATION not in mean.sections:
        spans = sum(trace.span for trace in traces)
        return (sum(trace.exposed for trace in traces) / spans, " in the recorded steps") if spans else None
    waits = mean.by_rank.get(Section.COMMUNICATION)
    if waits and slow_rank(mean) is not None:
        return min(waits) / mean.step, " also on the rank that waits least"  # which is the slow one
    return mean.sections[Section.COMMUNICATION] / mean.step, ""


def _typical(mean: Breakdown, section: Section, has_slow: bool) -> float:
    """Returns a section's share of a step: the median rank's where one rank is slow, else the mean rank's."""
    values = mean.by_rank.get(section)
    return _median(values) / mean.step if has_slow and values else mean.share(section) or 0.0


def _slow_text(facts: Evidence, mean: Breakdown, rank: int, own: float, median: float) -> str:
    more = {
        name: values[rank] - _median(values)
        for section, name in ((Section.DATA, "fetching data"), (Section.COMPUTE, "computing"))
        if (values := mean.by_rank.get(section))
    }
    slow = sum(one > SLOW_RATIO * median for one in mean.own)
    others = "" if slow == 1 else f"; slow ranks in all: {slow} of {mean.ranks}"
    pod = "" if facts.ranks_move else f" (pod {facts.name}-{rank // facts.processes})"
    return (
        f"rank {rank}{pod} takes {step_time(own)} of a step for its own work, {own / median:.1f}x the median rank's "
        f"{step_time(median)}, and differs most in {max(more, key=lambda name: more[name])}{others}"
    )


def _saves(facts: Evidence, mean: Breakdown, share: float) -> Verdict:
    """Returns the verdict on saves, with the interval at which they would cost a fiftieth of a step."""
    found = _verdict(Bound.CHECKPOINT, _share_text(mean, share, "stands still for saves"))
    if not facts.every_steps or not 0 < share < 1:
        return found
    # every * share / (1 - share) is a save's cost in steps that have none.
    steps = math.ceil(facts.every_steps * share / (1 - share) * (1 - SAVES_SHARE) / SAVES_SHARE)
    text = (
        f"`spec.checkpoint.everySteps: {steps}` instead of {facts.every_steps}: saves would take {percent(SAVES_SHARE)}"
    )
    return Verdict(bound=found.bound, shown_by=found.shown_by, advice=(text, *found.advice))


def _share_text(mean: Breakdown, share: float, what: str) -> str:
    return f"{percent(share)} of a step {what} ({step_time(share * mean.step)} of {step_time(mean.step)})"


def _median(values: Sequence[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


def _verdict(bound: Bound, shown_by: str) -> Verdict:
    return Verdict(bound=bound, shown_by=shown_by, advice=ADVICE[bound])
