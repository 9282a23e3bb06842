"""The verdict of `dtj report`: what bounds a run, the number that shows it, and fields that exist."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
import torch
import yaml

from dtj.report.breakdown import breakdown
from dtj.report.samples import NUMBERS
from dtj.report.traces import TraceOverlap
from dtj.report.verdict import ADVICE, SLOW_RATIO, UNMEASURED, Bound, Verdict, verdict
from dtj_agent.group import stragglers
from dtj_core.api import DistributedTrainingJob
from dtj_core.plan.times import rfc3339
from dtj_trainer.config import TrainerConfig
from dtj_trainer.config_parser import build, override
from dtj_trainer.telemetry.meter import _FIELDS, Rates, summary
from tests.unit.client.reports import BEGIN, facts, record, samples, steady, timed

GPU = {"gpu_utilization": 0.97}


def bound(ranks: int = 1, *, traces: tuple[TraceOverlap, ...] = (), status: Any = None, **values: Any) -> Verdict:
    """Returns the verdict on a run whose records have these values."""
    found = facts(steady(**values), replicas=ranks, **(status or {}))
    return verdict(found, breakdown(found.samples), traces)


def trace(exposed: float) -> TraceOverlap:
    """Returns the trace of a step of one second, in a fifth of which communication is hidden."""
    return TraceOverlap(rank=0, first=1, last=2, span=1.0, computation=0.7, communication=exposed + 0.2, overlapped=0.2)


DEAD = {"attempt": 1, "time": rfc3339(BEGIN + 9), "message": ""}
ONE = timed(data=0.02, compute=0.9, checkpoint=0.0)
TWO = timed(ranks=2, data=0.02, compute=0.9, checkpoint=0.0)
SLOW = {"stragglers": [{"rank": 1, "ratio": 2.5, "pod": "net-1"}]}
CASES: dict[str, tuple[Bound, str, Verdict]] = {
    "a third of a step waits for data": (
        Bound.DATA, "38.0 % of a step waits for data (380 ms of 1.00 s)", bound(**timed(data=0.38, compute=0.6)),
    ),
    "the ranks wait in collectives, all alike": (
        Bound.COMMUNICATION, "30.0 % of a step waits in collectives",
        bound(2, **timed(ranks=2, data=0.0, compute=0.7, exposed=0.3)),
    ),
    "one rank computes longer, and the others wait for it": (
        Bound.SLOW_RANK, "rank 2 (pod net-2) takes 800 ms of a step for its own work, 2.0x the median rank's 400 ms, "
        "and differs most in computing",
        bound(4, **timed(ranks=4, data=0.0, compute=[0.4, 0.4, 0.8, 0.4], exposed=[0.5, 0.5, 0.1, 0.5])),
    ),
    "one rank fetches data longer": (
        Bound.SLOW_RANK, "differs most in fetching data",
        bound(3, **timed(ranks=3, data=[0.0, 0.5, 0.0], compute=0.3, exposed=[0.6, 0.1, 0.6])),
    ),
    "one of two ranks is slow": (
        Bound.SLOW_RANK, "rank 0 (pod net-0)",
        bound(2, **timed(ranks=2, data=0.0, compute=[0.9, 0.5], exposed=[0.05, 0.45])),
    ),
    "a node with two of four ranks is slow": (
        Bound.SLOW_RANK, "; slow ranks in all: 2 of 4",
        bound(4, **timed(ranks=4, data=0.0, compute=[0.4, 0.4, 0.8, 0.9], exposed=[0.5, 0.5, 0.1, 0.0])),
    ),
    "the wire takes longer than the others wait for the slow rank": (
        Bound.COMMUNICATION, "60.0 % of a step waits in collectives (600 ms of 1.00 s) also on the rank that waits "
        "least",
        bound(2, **timed(ranks=2, data=0.0, compute=[0.35, 0.2], exposed=[0.6, 0.75])),
    ),
    "ranks differ a little, and each is the slowest now and then": (
        Bound.COMPUTE, "of a step is computation",
        bound(2, **timed(ranks=2, data=0.0, compute=[0.97, 0.87], exposed=[0.02, 0.12])),
    ),
    "every step stands still for a save": (
        Bound.CHECKPOINT, "40.0 % of a step stands still for saves", bound(**timed(compute=0.6, checkpoint=0.4)),
    ),
    "a failure ran out of memory": (
        Bound.MEMORY, "1 of 2 failures ran out of memory (OOMKilled)",
        bound(status={"failures": [{**DEAD, "reason": "OOMKilled"}, {**DEAD, "reason": "NodeLost"}]}, **ONE),
    ),
    "torch named the lack of memory": (
        Bound.MEMORY, "1 of 1 failures ran out of memory (WorkerFailed)",
        bound(status={"failures": [{**DEAD, "reason": "WorkerFailed", "message": "CUDA out of memory."}]}, **ONE),
    ),
    "the memory is nearly full": (
        Bound.MEMORY, "a rank had 93.0 % of its memory in use", bound(memory_share=0.93, **ONE),
    ),
    "the memory is nearly full, and the ranks wait for data": (
        Bound.DATA, "50.0 %", bound(memory_share=0.93, **timed(data=0.5, compute=0.5)),
    ),
    "a callback takes most of a step": (Bound.OTHER, "80.0 % of a step is in no section", bound(**timed(compute=0.2))),
    "a loss of less than a tenth": (
        Bound.COMPUTE, "91.0 % of a step is computation", bound(**timed(data=0.09, compute=0.91)),
    ),
    "the MFU is known": (Bound.COMPUTE, "90.0 % of a step is computation; MFU 41.0 %", bound(mfu=0.41, **ONE)),
    "no record has the seconds of a step": (Bound.UNKNOWN, "no logged steps", bound(samples_per_second=9.0)),
    "communication was not measured": (Bound.UNKNOWN, "take 90.0 % of a step, and were not separated", bound(2, **TWO)),
    "communication is in a trace alone": (
        Bound.COMMUNICATION, "30.0 % of a step waits in collectives", bound(2, traces=(trace(0.3),), **TWO),
    ),
    "a trace shows that communication is hidden": (Bound.COMPUTE, "90.0 %", bound(2, traces=(trace(0.0),), **TWO)),
    "the agents have found a slow rank, whose clocks no record has": (
        Bound.SLOW_RANK, "rank 1: 2.5x of the median rank's own work", bound(2, status=SLOW, **TWO),
    ),
    "the host waits for data, and the device is never idle": (
        Bound.COMPUTE, "60.0 %", bound(**GPU, **timed(data=0.4, compute=0.6)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_verdict_is_the_cause_with_its_number(case: str) -> None:
    expected, number, found = CASES[case]
    assert found.bound == expected
    assert number in found.shown_by
    assert found.advice


def test_every_cause_has_a_case() -> None:
    assert {expected for expected, _, _ in CASES.values()} == set(Bound) == set(ADVICE)


def test_unmeasured_communication_asks_for_a_trace() -> None:
    assert bound(2, **TWO).advice == UNMEASURED


def test_first_record_of_an_attempt_does_not_count() -> None:
    """Caches are cold then, so that a run that only begins slowly is not data-bound."""
    slow, fast = timed(data=0.9, compute=0.1), timed(data=0.0, compute=1.0)
    steps = [(10, 1, slow), (20, 1, fast), (30, 1, fast), (31, 2, slow), (41, 2, fast)]
    given = samples(*(record(step, attempt, **values) for step, attempt, values in steps))
    assert verdict(facts(given), breakdown(given)).bound == Bound.COMPUTE


def test_advised_interval_makes_saves_a_fiftieth_of_a_step() -> None:
    """A save of 20 s every 50 steps of 0.6 s: after n steps, it takes 20 of 0.6 n + 20 seconds."""
    advice = bound(**timed(compute=0.6, checkpoint=0.4)).advice[0]
    assert "instead of 50" in advice
    found = re.search(r"spec\.checkpoint\.everySteps: (\d+)", advice)
    assert found is not None
    assert 20 / (0.6 * int(found[1]) + 20) == pytest.approx(0.02, abs=1e-4)


def test_slow_rank_is_defined_as_by_the_agents() -> None:
    assert stragglers.RATIO == SLOW_RATIO


# Values for the fields that the advice names without one.
VALUES = {"data.workers": 2, "data.prefetch": 4, "global_batch_size": 256}
NOT_FIELDS = {
    "get_batch(indices)", "after_step", "sinks", "Trainer", "telemetry.profile", "dtj simulate", "--metrics FILE",
    "dtj report --traces FOLDER",
}  # fmt: skip
NAMED = sorted(
    {name for texts in (*ADVICE.values(), UNMEASURED) for text in texts for name in re.findall("`([^`]+)`", text)}
)


@pytest.mark.parametrize("named", [name for name in NAMED if name not in NOT_FIELDS])
def test_advised_field_exists_with_its_value(named: str) -> None:
    name, _, value = named.partition(": ")
    if name.startswith("spec.") or name in ("reasons", "action"):
        rule = {"reasons": ["Straggler"], "action": "RestartElsewhere"}
        assert name in ("spec.restart.rules", "spec.replicas") or yaml.safe_load(value) == rule[name]
        spec = {"image": "i", "entrypoint": {"module": "m"}, "replicas": 3, "restart": {"rules": [rule]}}
        DistributedTrainingJob.model_validate(
            {"apiVersion": "training.dtj.dev/v1alpha1", "kind": "DistributedTrainingJob", "metadata": {"name": "j"},
             "spec": spec}
        )  # fmt: skip
        return
    tree: dict[str, Any] = {"steps": 1, **({"strategy": "fsdp"} if name.startswith("strategy.") else {})}
    override(tree, [f"--{name}", value or str(VALUES[name])])
    build(TrainerConfig, tree)


def test_numbers_of_a_report_are_metrics_of_the_trainer() -> None:
    """Makes a record with everything that a rank can measure."""
    rates = Rates(units={"tokens": 1.0, "images": 1.0}, flops=1.0, peak=1.0)
    window = summary(torch.ones(2, len(_FIELDS), dtype=torch.float64), 4, rates)
    assert {*window.metrics, "samples_per_second"} >= NUMBERS
    assert "telemetry" in {field.name for field in dataclasses.fields(TrainerConfig)}
