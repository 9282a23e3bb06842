"""Where a step's time goes, on each rank: data, compute, communication, checkpoint; and what follows from it for the group."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from dtj_trainer.distributed.comm_timer import CommStats
from dtj_trainer.distributed.device_memory import peak_bytes
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.telemetry.gpu import GpuMeter, peak_flops

PARTS = ("data", "compute", "checkpoint")
_FIELDS = ("loss", "step", *PARTS, "communication", "exposed", "evaluation", "memory", "gpu")
_NAN = float("nan")


class Meter:
    """Adds up a rank's times between two logged steps, without validation, which is no part of a step.

    Host times: on a GPU, a step's total is exact and its parts are where the host waited.
    """

    def __init__(
        self, group: Group, *, flops_per_sample: float | None, tokens_per_sample: int | None, peak: float | None
    ) -> None:
        self._group = group
        self._flops = flops_per_sample
        self._tokens = tokens_per_sample
        self._peak = peak or peak_flops(group.device)
        self._gpu = GpuMeter(group.device)
        self._seconds = dict.fromkeys((*PARTS, "evaluation"), 0.0)
        self._steps = 0
        self._since = time.perf_counter()

    def begin(self) -> None:
        """The first step begins: what came before (loading, building) is no part of it."""
        self._since = time.perf_counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What is done inside belongs to this part, or to `evaluation`, which is no part of a step."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] += time.perf_counter() - started

    def add(self, name: str, seconds: float) -> None:
        """Time of a part that was measured elsewhere."""
        self._seconds[name] += seconds

    def step_done(self) -> None:
        """Counts a step."""
        self._steps += 1

    def close_window(self, local_loss: float, communication: CommStats | None, samples_per_step: int) -> Window:
        """Means per step since the last call, of all ranks: one collective. `local_loss`: this rank's part of the mean."""
        now = time.perf_counter()
        steps = max(1, self._steps)
        parts = {part: self._seconds[part] / steps for part in PARTS}
        evaluation = self._seconds["evaluation"]
        exposed = min(communication.exposed, parts["compute"]) if communication else _NAN
        parts["compute"] -= exposed if communication else 0.0  # the parts of a step add up, so no second is in two
        gpu = self._gpu.utilization()
        row = [
            local_loss,
            (now - self._since - evaluation) / steps,
            *parts.values(),
            communication.total if communication else _NAN,
            exposed,
            evaluation,
            float(peak_bytes(self._group.device)),
            _NAN if gpu is None else gpu,
        ]
        rows = self._group.gather(torch.tensor(row, dtype=torch.float64))
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        self._steps, self._since = 0, now
        return summary(rows, samples_per_step, tokens=self._tokens, flops=self._flops, peak=self._peak)


def summary(
    rows: torch.Tensor, samples_per_step: int, *, tokens: int | None = None, flops: float | None = None, peak: float | None = None
) -> Window:
    """What the rows of all ranks say of the group (pure). `tokens`, `flops`: of one sample; `peak`: FLOP/s of one rank."""
    by_rank = {name: rows[:, i].tolist() for i, name in enumerate(_FIELDS)}
    mean = dict(zip(_FIELDS, rows.mean(0).tolist(), strict=True))
    # What a rank does by itself, without what it waits for others: the one with the most keeps the others waiting.
    own = [data + compute for data, compute in zip(by_rank["data"], by_rank["compute"], strict=True)]
    average = sum(own) / len(own)
    metrics = {f"{name}_seconds": mean[name] for name in ("step", *PARTS)}
    metrics |= {
        "imbalance": max(own) / average - 1 if average > 0 else 0.0,
        "slowest_rank": float(own.index(max(own))),
        "memory_bytes": max(by_rank["memory"]),
    }
    told = ["step", *PARTS]
    if not math.isnan(mean["communication"]):  # the strategy measures it
        told += ["communication", "exposed"]
        metrics["communication_seconds"] = mean["communication"]
        metrics["exposed_seconds"] = mean["exposed"]
        metrics["communication_share"] = mean["exposed"] / mean["step"] if mean["step"] > 0 else 0.0
        metrics["overlap"] = max(0.0, 1 - mean["exposed"] / mean["communication"]) if mean["communication"] > 0 else 0.0
    if mean["evaluation"]:
        metrics["evaluation_seconds"] = mean["evaluation"]
    if not math.isnan(mean["gpu"]):
        metrics["gpu_utilization"] = mean["gpu"]
    if mean["step"] > 0:
        samples_per_second = samples_per_step / mean["step"]
        if tokens:
            metrics["tokens_per_second"] = tokens * samples_per_second
        if flops and peak:
            metrics["mfu"] = flops * samples_per_second / (peak * len(rows))
    # Added up in rank order, so the loss is the same number on every rank and on every run.
    loss = float(rows[:, 0].sum())
    return Window(loss=loss, metrics=metrics, per_rank={f"{name}_seconds": by_rank[name] for name in told})


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """What the group did per step between two logged steps."""

    loss: float
    metrics: dict[str, float]
    per_rank: dict[str, list[float]]
