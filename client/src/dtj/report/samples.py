"""The logged steps of a run, read from its metrics file or from the lines that rank 0 printed. Pure."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dtj.report.values import integer, mapping, number

NUMBERS = frozenset((
    "samples_per_second", "tokens_per_second", "images_per_second", "mfu", "step_seconds", "data_seconds",
    "compute_seconds", "checkpoint_seconds", "communication_seconds", "exposed_seconds", "evaluation_seconds",
    "memory_bytes", "memory_share", "gpu_utilization", "gpu_memory_bytes",
))  # fmt: skip
"""The metrics of the training library that a report shows: docs/trainer.md#telemetry. All are 0 or more."""
_PAIR = re.compile(r"([A-Za-z_]+)=(-?[0-9.eE+-]+|nan|inf)(?=\s|,|$)")
_RANK = re.compile(r"\[rank \d+\] ")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One logged step: means over the steps since the logged step before it."""

    time: float
    """Unix seconds."""
    step: int
    attempt: int
    loss: float | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    """By name of `NUMBERS`, of the group."""
    by_rank: Mapping[str, array[float]] = field(default_factory=dict)
    """By name of `NUMBERS`, one number a rank."""


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
    time, step = number(when), integer(row.get("step"))
    if time is None or step is None:
        return None
    known = {name: value for name in NUMBERS & row.keys() if (value := number(row[name])) is not None and value >= 0}
    ranks = mapping(row.get("per_rank"))
    by_rank = {name: found for name in NUMBERS & ranks.keys() if (found := _by_rank(ranks[name])) is not None}
    return Sample(
        time=time, step=step, attempt=integer(row.get("attempt")) or 1, loss=number(row.get("loss")),
        numbers=known, by_rank=by_rank,
    )  # fmt: skip


def _by_rank(values: object) -> array[float] | None:
    found = [number(value) for value in values] if isinstance(values, list) else []
    if not found or any(value is None or value < 0 for value in found):
        return None
    return array("d", (value for value in found if value is not None))


def _parsed(text: str) -> float | int | None:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None
