"""Memory of a rank in each arm: peak of the process over a run, and weights and optimizer state between steps."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.optim import Optimizer

from benchmarks.memory import Peak
from benchmarks.report import Rows
from benchmarks.trainer.arms import ARMS, MEMORY_ONLY, installed
from benchmarks.trainer.group import run
from benchmarks.trainer.tensor_bytes import by_kind
from benchmarks.trainer.workloads import MLP
from dtj_trainer.config import TrainerConfig
from dtj_trainer.measure.bench.workloads import mlp
from dtj_trainer.trainer import Trainer

SHORT = replace(MLP, steps=2, warmup=1)


def measure(world: int, trials: int) -> tuple[Rows, Rows]:
    """Returns (peak, state) in MB of the largest rank by arm, each in fresh processes that ran no other arm."""
    peaks: Rows = {name: [] for name in (*installed(), *MEMORY_ONLY)}
    states: Rows = {name: [] for name in peaks}
    for _ in range(trials):
        for name in peaks:
            peak, state = run(world, one, name)
            peaks[name].append(peak)
            states[name].append(state)
    return peaks, states


def one(arm: str) -> tuple[float, float]:
    """Measures one arm on every rank. A small model trains first, so that lazily loaded code does not count."""
    trainer, train = Trainer(TrainerConfig(steps=1)), (ARMS | MEMORY_ONLY)[arm]
    train(trainer, mlp(8, steps=1))
    SHORT.data()
    peak = Peak(trainer.group.device)
    done = train(trainer, SHORT)
    assert done.optimizer is not None
    mine = torch.tensor([peak.bytes(), _state_bytes(done.optimizer, trainer)], dtype=torch.float64)
    most = (trainer.group.gather(mine).amax(0) / 1e6).tolist()
    trainer.close()
    return most[0], most[1]


def _state_bytes(optimizer: Optimizer, trainer: Trainer) -> int:
    inner = getattr(optimizer, "optim", None)  # of a ZeroRedundancyOptimizer, which has the state
    found = by_kind([o for o in (optimizer, inner) if isinstance(o, Optimizer)], trainer)
    return found["parameters"] + found["optimizer"]
