"""One trial: an arm trains in this group of ranks, and rank 0 has the figures."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dtj_trainer.config import TrainerConfig
from dtj_trainer.distributed.comm_timer import CommStats
from dtj_trainer.distributed.device_memory import peak_bytes
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.errors import ConfigError
from dtj_trainer.measure.bench import arms
from dtj_trainer.measure.bench.probe import Probe
from dtj_trainer.measure.bench.workloads import LOG_EVERY, SIZES, Run, Workload
from dtj_trainer.telemetry.record import Record
from dtj_trainer.trainer import Trainer

_NAN = float("nan")


def facts() -> dict[str, Any]:
    """Returns what a caller must know of this interpreter before it starts ranks with it."""
    on_gpu = torch.cuda.is_available()
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(0) if on_gpu else _cpu(),
        "gpus": torch.cuda.device_count() if on_gpu else 0,
        "strategies": list(arms.STRATEGIES),
        "arms": {name: arms.installed(name) for name in arms.OTHERS},
        "models": SIZES,
    }


def _cpu() -> str:
    """Returns the name of the CPU, as far as the kernel gives one."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "a CPU"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "a CPU")


def pin(cores: Sequence[int], local_rank: int) -> None:
    """Keeps this process and its later threads on one of the cores. A rank with a GPU is not pinned."""
    if cores and not torch.cuda.is_available():
        os.sched_setaffinity(0, {cores[local_rank % len(cores)]})


def use_threads(number: int) -> None:
    """Sets torch's threads of this process. Raises ConfigError for a number below 1."""
    if number < 1:
        raise ConfigError(f"--threads {number}: write 1 or more")
    torch.set_num_threads(number)


def log_every(warmup: int) -> int:
    """Returns every how many steps an arm logs: at most LOG_EVERY, so that one window ends with the warm-up."""
    return max(number for number in range(1, LOG_EVERY + 1) if warmup % number == 0)


def run_trial(arm: str, workload: Workload) -> dict[str, Any] | None:
    """Trains one arm in the group of the environment; a collective. Returns the figures on rank 0, else None.

    Raises ConfigError for an arm that can't run here, or a batch that the ranks can't share evenly.
    """
    records = _Records(after=workload.warmup)
    train = arms.named(arm, [records])
    world = WorkerEnv.read().world_size
    if workload.warmup < 1:
        raise ConfigError(f"--warmup {workload.warmup}: write 1 or more; the first step allocates")
    if workload.steps < 2:
        raise ConfigError(f"--steps {workload.steps}: write 2 or more")
    if workload.batch % world:
        raise ConfigError(f"--batch {workload.batch}: write a multiple of the {world} ranks, which share it evenly")
    with Trainer(TrainerConfig(steps=1, global_batch_size=workload.batch)) as trainer:
        run = Run(workload, trainer, Probe(trainer.group))
        train(run)
        losses = run.losses()
        assert run.probe is not None
        stats = run.probe.stats()
        took = [
            end - begin
            for begin, end in zip(run.ends[workload.warmup - 1 :], run.ends[workload.warmup :], strict=False)
        ]
        row = [
            stats.total if stats else _NAN,
            stats.exposed if stats else _NAN,
            float(peak_bytes(trainer.group.device)),
            *took,
        ]
        rows = trainer.group.gather(torch.tensor(row, dtype=torch.float64)).tolist()
        if trainer.group.rank:
            return None
        ranks = [CommStats(total=one[0], exposed=one[1]) for one in rows]
        found = figures(
            took=[one[3:] for one in rows],
            communication=records.communication() if arm in arms.STRATEGIES else ranks,
            memory=[one[2] for one in rows],
            batch=workload.batch,
        )
        return found | {"arm": arm, "world": world, "loss": float(losses[-1]), "backend": trainer.group.backend}


def figures(
    *,
    took: Sequence[Sequence[float]],
    communication: Sequence[CommStats] | None,
    memory: Sequence[float],
    batch: int,
) -> dict[str, Any]:
    """Returns the figures of a trial by name (pure). Times are seconds, and shares are from 0 to 1.

    The definitions are those of telemetry/meter.py: `communication_share` is what a rank only waits, as a share of
    the step, `overlap` the part of the communication that is not waited for, and `imbalance` the own time of the
    slowest rank (without waits) over the mean, minus 1. Their mean over the ranks counts.

    Args:
        took: By rank, the time of each timed step.
        communication: By rank, means per step; None, or NaN for a rank: not measured.
        memory: By rank, peak bytes.
        batch: Samples of a step over all ranks.
    """
    world = len(took)
    # A rank that is late in one step has less of the next one: the mean over ranks, and not the largest, adds up.
    steps = [statistics.fmean(of_ranks) for of_ranks in zip(*took, strict=True)]
    mean = statistics.fmean(steps)
    found: dict[str, Any] = {
        "step_seconds": statistics.median(steps),
        "steps": [round(seconds, 7) for seconds in steps],
        "samples_per_second": batch / mean,
        "memory_bytes": max(memory),
        "communication_seconds": None,
        "exposed_seconds": None,
        "communication_share": None,
        "overlap": None,
        "imbalance": None,
    }
    if world == 1:
        return found | {
            "communication_seconds": 0.0,
            "exposed_seconds": 0.0,
            "communication_share": 0.0,
            "imbalance": 0.0,
        }
    if communication is None or any(math.isnan(one.total) or math.isnan(one.exposed) for one in communication):
        return found
    total = statistics.fmean(one.total for one in communication)
    exposed = statistics.fmean(one.exposed for one in communication)
    own = [statistics.fmean(rank) - one.exposed for rank, one in zip(took, communication, strict=True)]
    average = statistics.fmean(own)
    return found | {
        "communication_seconds": total,
        "exposed_seconds": exposed,
        "communication_share": min(1.0, exposed / mean),
        "overlap": max(0.0, 1 - exposed / total) if total > 0 else None,
        "imbalance": max(own) / average - 1 if average > 0 else None,
        "own_seconds": own,
    }


class _Records:
    """Keeps what the Trainer has measured of its collectives after the warm-up, by rank."""

    def __init__(self, after: int) -> None:
        self._after = self._last = after
        self._windows: list[tuple[int, Mapping[str, list[float]]]] = []

    def write(self, record: Record) -> None:
        """Keeps a record whose window has no step of the warm-up."""
        if record.step > self._after:
            self._windows.append((record.step - self._last, record.per_rank))
            self._last = record.step

    def close(self) -> None:
        """Closes nothing."""

    def communication(self) -> list[CommStats] | None:
        """Returns the means per step of each rank; None if nothing was measured."""
        known = [(steps, sections) for steps, sections in self._windows if "exposed_seconds" in sections]
        if not known:
            return None
        whole = sum(steps for steps, _ in known)

        def mean(name: str, rank: int) -> float:
            return sum(steps * sections[name][rank] for steps, sections in known) / whole

        ranks = range(len(known[0][1]["exposed_seconds"]))
        return [
            CommStats(total=mean("communication_seconds", rank), exposed=mean("exposed_seconds", rank))
            for rank in ranks
        ]
