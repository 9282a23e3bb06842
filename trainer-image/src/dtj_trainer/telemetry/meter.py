"""Where a step's time goes, on each rank: data, compute, communication, checkpoint; and what follows from it for the group."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from dtj_trainer.comm.group import Group
from dtj_trainer.memory import peak_bytes
from dtj_trainer.telemetry.gpu import GpuMeter, peak_flops

PARTS = ("data", "compute", "checkpoint")
_FIELDS = ("loss", "step", *PARTS, "communication", "exposed", "memory", "gpu")


@dataclass(frozen=True, kw_only=True, slots=True)
class Communication:
    """Seconds of one step's collectives on one rank."""

    total: float
    exposed: float
    """The part in which this rank did nothing else."""


class Meter:
    """Adds up a rank's times between two logged steps. Host times: on a GPU, a step's total is exact and its parts are
    where the host waited."""

    def __init__(
        self, group: Group, *, flops_per_sample: float | None, tokens_per_sample: int | None, peak: float | None
    ) -> None:
        self._group = group
        self._flops = flops_per_sample
        self._tokens = tokens_per_sample
        self._peak = peak or peak_flops(group.device)
        self._gpu = GpuMeter(group.device)
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._steps = 0
        self._since = time.perf_counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What is done inside belongs to this part."""
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

    def close_window(self, local_loss: float, communication: Communication | None, samples_per_step: int) -> Window:
        """Means per step since the last call, of all ranks: one collective. `local_loss`: this rank's part of the mean."""
        now = time.perf_counter()
        steps = max(1, self._steps)
        gpu = self._gpu.utilization()
        row = [
            local_loss,
            (now - self._since) / steps,
            *(self._seconds[p] / steps for p in PARTS),
            communication.total if communication else float("nan"),
            communication.exposed if communication else float("nan"),
            float(peak_bytes(self._group.device)),
            float("nan") if gpu is None else gpu,
        ]
        rows = self._group.gather(torch.tensor(row, dtype=torch.float64))
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._steps, self._since = 0, now
        return self._window(rows, samples_per_step)

    def _window(self, rows: torch.Tensor, samples_per_step: int) -> Window:
        by_rank = {name: rows[:, i].tolist() for i, name in enumerate(_FIELDS)}
        # Added up in rank order, so the loss is the same number on every rank and on every run.
        loss = float(rows[:, 0].sum())
        mean = dict(zip(_FIELDS, rows.mean(0).tolist(), strict=True))
        own = rows[:, _FIELDS.index("compute")] - rows[:, _FIELDS.index("exposed")].nan_to_num(0.0)
        metrics = {
            "step_seconds": mean["step"],
            "data_seconds": mean["data"],
            "compute_seconds": mean["compute"],
            "checkpoint_seconds": mean["checkpoint"],
            "imbalance": float(own.max() / own.mean()) - 1 if float(own.mean()) > 0 else 0.0,
            "memory_bytes": max(by_rank["memory"]),
        }
        if mean["communication"] == mean["communication"]:  # not NaN: the strategy measures it
            metrics["communication_seconds"] = mean["communication"]
            metrics["communication_share"] = mean["exposed"] / mean["step"]
            metrics["overlap"] = 1 - mean["exposed"] / mean["communication"] if mean["communication"] > 0 else 0.0
        if mean["gpu"] == mean["gpu"]:
            metrics["gpu_utilization"] = mean["gpu"]
        if self._tokens:
            metrics["tokens_per_second"] = self._tokens * samples_per_step / mean["step"]
        if self._flops and self._peak:
            achieved = self._flops * samples_per_step / mean["step"] / self._group.world_size
            metrics["mfu"] = achieved / self._peak
        per_rank = {f"{name}_seconds": by_rank[name] for name in ("step", *PARTS)}
        return Window(loss=loss, metrics=metrics, per_rank=per_rank)


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """What the group did per step between two logged steps."""

    loss: float
    metrics: dict[str, float]
    per_rank: dict[str, list[float]]
