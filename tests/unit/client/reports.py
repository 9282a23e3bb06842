"""Runs that reports are made of: facts and logged steps as the training library writes them."""

from __future__ import annotations

import json
from typing import Any

from dtj.report.evidence import Evidence, evidence
from dtj.report.samples import Sample, metrics_samples
from dtj_core.plan.times import rfc3339

BEGIN = 1_700_000_000.0
EVERY = 10
"""Steps between two records."""


def record(step: int, attempt: int = 1, time: float | None = None, **values: Any) -> dict[str, Any]:
    """Returns a line of metrics.jsonl; the step's time is BEGIN and a second a step."""
    at = BEGIN + step if time is None else BEGIN + time
    return {"step": step, "attempt": attempt, "loss": 1 / step, "time": at, **values}


def timed(step: float = 1.0, ranks: int = 1, **sections: float | list[float]) -> dict[str, Any]:
    """Returns the values of a record: `data=0.5` of every rank, `compute=[0.2, 0.4]` of each; seconds."""
    named = {f"{name}_seconds": given for name, given in sections.items()}
    by_rank = {name: given if isinstance(given, list) else [given] * ranks for name, given in named.items()}
    means = {name: sum(values) / len(values) for name, values in by_rank.items()}
    return {"step_seconds": step, **means, "per_rank": {"step_seconds": [step] * ranks, **by_rank}}


def samples(*records: dict[str, Any]) -> list[Sample]:
    """Returns what a report reads from these lines of metrics.jsonl."""
    return metrics_samples("\n".join(json.dumps(one) for one in records))


def steady(count: int = 6, **values: Any) -> list[Sample]:
    """Returns so many records with the same values."""
    return samples(*(record(EVERY * (at + 1), **values) for at in range(count)))


def facts(given: list[Sample], replicas: int = 1, every_steps: int = 50, **status: Any) -> Evidence:
    """Returns the facts of a job of one rank a pod, which lasts as long as its samples."""
    spec = {"replicas": replicas, "checkpoint": {"everySteps": every_steps}}
    times = {"startTime": rfc3339(BEGIN)}
    return evidence({"metadata": {"name": "net"}, "spec": spec, "status": {**times, **status}}, 1, given)
