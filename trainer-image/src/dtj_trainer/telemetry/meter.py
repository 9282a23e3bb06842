"""Measures how the ranks spend a step: data, compute, communication, checkpoint."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from dtj_contract import names
from dtj_trainer.distributed.comm_timer import CommStats
from dtj_trainer.distributed.device_memory import device_bytes, peak_bytes
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.telemetry.gpu import GpuMeter, peak_flops

SECTIONS = ("data", "compute", "checkpoint")
_FIELDS = (
    "loss", "step", *SECTIONS, "communication", "exposed", "evaluation", "memory", "memory_share", "gpu", "gpu_memory",
)  # fmt: skip
_NAN = float("nan")


class Meter:
    """Adds up a rank's times between two logged steps; validation is not a section of a step.

    The times are the host's: on a GPU, a step's total is exact, and sections are the host's waits.
    """

    def __init__(
        self,
        group: Group,
        *,
        flops_per_sample: float | None,
        units_per_sample: Mapping[str, float | None],
        peak: float | None,
        single_rank_rate: float | None = None,
    ) -> None:
        """Begins a window. Values that are None have no metric.

        Args:
            group: All ranks of the run.
            flops_per_sample: FLOPs of forward and backward.
            units_per_sample: By a unit's name (tokens, images), its number in a sample.
            peak: FLOP/s of one rank's device; None: that of a known GPU.
            single_rank_rate: Samples/s of a run of one rank.
        """
        self._group = group
        self._rates = Rates(
            units={name: number for name, number in units_per_sample.items() if number},
            flops=flops_per_sample,
            peak=peak or peak_flops(group.device),
            single_rank=single_rank_rate,
        )
        self._gpu = GpuMeter(group.device)
        self._seconds = dict.fromkeys((*SECTIONS, "evaluation"), 0.0)
        self._steps = 0
        self._since = time.perf_counter()

    def begin(self) -> None:
        """Begins the first step, which excludes loading and building."""
        self._since = time.perf_counter()

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Adds the time inside to a section of the step, or to `evaluation`, which is none."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] += time.perf_counter() - started

    def add(self, name: str, seconds: float) -> None:
        """Adds the time of a section that was measured elsewhere."""
        self._seconds[name] += seconds

    def step_done(self) -> None:
        """Counts a step."""
        self._steps += 1

    def close_window(self, local_loss: float, communication: CommStats | None, samples_per_step: int) -> RateWindow:
        """Returns means per step since the last call, over all ranks; one collective.

        `local_loss` is this rank's share of the mean loss.
        """
        now = time.perf_counter()
        steps = max(1, self._steps)
        sections = {section: self._seconds[section] / steps for section in SECTIONS}
        evaluation = self._seconds["evaluation"]
        exposed = min(communication.exposed, sections["compute"]) if communication else _NAN
        sections["compute"] -= exposed if communication else 0.0  # no second counts in two sections
        gpu, memory = self._gpu.read(), peak_bytes(self._group.device)
        row = [
            local_loss,
            (now - self._since - evaluation) / steps,
            *sections.values(),
            communication.total if communication else _NAN,
            exposed,
            evaluation,
            float(memory),
            memory / device_bytes(self._group),
            *((_NAN, _NAN) if gpu is None else (gpu.utilization, gpu.memory)),
        ]
        rows = self._group.gather(torch.tensor(row, dtype=torch.float64))
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        self._steps, self._since = 0, now
        return summary(rows, samples_per_step, self._rates)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Constants of a run, by which a rate in samples/s becomes the units of the field."""

    units: Mapping[str, float] = field(default_factory=dict)
    """By a unit's name, its number in a sample."""
    flops: float | None = None
    """FLOPs of forward and backward of one sample."""
    peak: float | None = None
    """FLOP/s of one rank's device."""
    single_rank: float | None = None
    """Samples/s of a run of one rank."""

    def metrics(self, samples_per_second: float, world_size: int) -> dict[str, float]:
        """Returns the rate of all ranks in each unit, MFU (PaLM, appendix B) and scaling efficiency."""
        found = {f"{name}_per_second": number * samples_per_second for name, number in self.units.items()}
        if self.flops and self.peak:
            found["mfu"] = self.flops * samples_per_second / (self.peak * world_size)
        if self.single_rank:
            found["scaling_efficiency"] = samples_per_second / (self.single_rank * world_size)
        return found


def summary(rows: torch.Tensor, samples_per_step: int, rates: Rates) -> RateWindow:
    """Returns what follows from the rows of all ranks for the group (pure)."""
    by_rank = {name: rows[:, i].tolist() for i, name in enumerate(_FIELDS)}
    mean = dict(zip(_FIELDS, rows.mean(0).tolist(), strict=True))
    # Time of a rank's own work, without waits for other ranks: the rank with the most keeps the
    # others waiting.
    own = [data + compute for data, compute in zip(by_rank["data"], by_rank["compute"], strict=True)]
    average = sum(own) / len(own)
    metrics = {f"{name}_seconds": mean[name] for name in ("step", *SECTIONS)}
    metrics |= {
        "imbalance": max(own) / average - 1 if average > 0 else 0.0,
        "slowest_rank": float(own.index(max(own))),
        "memory_bytes": max(by_rank["memory"]),
        "memory_share": max(by_rank["memory_share"]),
    }
    measured = ["step", *SECTIONS]
    if not math.isnan(mean["communication"]):  # the strategy measures it
        measured += ["communication", "exposed"]
        metrics["communication_seconds"] = mean["communication"]
        metrics["exposed_seconds"] = mean["exposed"]
        metrics["communication_share"] = mean["exposed"] / mean["step"] if mean["step"] > 0 else 0.0
        metrics["overlap"] = max(0.0, 1 - mean["exposed"] / mean["communication"]) if mean["communication"] > 0 else 0.0
    per_rank = {f"{name}_seconds": by_rank[name] for name in measured} | {"memory_bytes": by_rank["memory"]}
    if mean["evaluation"]:
        metrics["evaluation_seconds"] = mean["evaluation"]
    if not math.isnan(mean["gpu"]):  # every rank has read its device
        metrics["gpu_utilization"] = mean["gpu"]
        metrics["gpu_memory_bytes"] = max(by_rank["gpu_memory"])
        per_rank |= {"gpu_utilization": by_rank["gpu"], "gpu_memory_bytes": by_rank["gpu_memory"]}
    if mean["step"] > 0:
        metrics |= rates.metrics(samples_per_step / mean["step"], len(rows))
    # Summed in rank order, so that the loss is the same number on every rank and in every run.
    loss = float(rows[:, 0].sum())
    return RateWindow(loss=loss, metrics=metrics, per_rank=per_rank)


@dataclass(frozen=True, kw_only=True, slots=True)
class RateWindow:
    """Means of the group per step, between two logged steps."""

    loss: float
    metrics: dict[str, float]
    per_rank: dict[str, list[float]]


def worker_age() -> float | None:
    """Returns the seconds since the agent started this worker; without an agent since the kernel started the process.

    At the first step, this is the time of a recovery that a user's imports cost. None where there is no /proc.
    """
    started = os.environ.get(names.ENV_STARTED_AT)
    try:
        if started is None:
            fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
            started = str(int(fields[19]) / os.sysconf("SC_CLK_TCK"))  # field 22 of proc(5): ticks after boot
        return time.clock_gettime(time.CLOCK_BOOTTIME) - float(started)
    except (OSError, ValueError):
        return None
