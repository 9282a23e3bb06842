"""The step with the method that `auto` has chosen, beside the step with each method that it tries."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.communication.speed import Arm, net
from dtj_trainer.communication import CommunicationConfig
from dtj_trainer.communication.auto import CANDIDATES
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.strategies import DdpConfig, make

LINKS = (50, 200, 1000, 4000)
"""Rates in Mbit/s."""
STEPS = 5
AUTO, BEST = "auto", "the best of these"
SIDE, TOKENS, WIDTH = 16, 32, 256


def convolutions() -> nn.Module:
    """Returns 0.6 M parameters that take long: 2 MB of gradients."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Conv2d(128, 128, 3, padding=1), nn.ReLU()) for _ in range(3)]
    return nn.Sequential(nn.Conv2d(3, 128, 3, padding=1), *layers, nn.Flatten(), nn.Linear(128 * SIDE**2, 4))


def transformer() -> nn.Module:
    """Returns a transformer of 3.2 M parameters: 13 MB of gradients."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP": (net, (16, 1024)),
    "transformer": (transformer, (8, TOKENS, WIDTH)),
    "convolutions": (convolutions, (8, 3, SIDE, SIDE)),
}
"""Each model, and the shape of a rank's batch."""


def arm(model: str, method: Any, group: Group) -> Arm:
    """Returns a model that is trained by one method, after its warm-up."""
    strategy = make(DdpConfig(), None, CommunicationConfig(method=method, warmup_steps=0))
    return Arm(strategy.wrap(MODELS[model][0](), group), strategy)


def decide(one: Arm, x: torch.Tensor) -> str:
    """Trains with `auto` until it has chosen, and ends its warm-up. Returns the choice."""
    queue = one.strategy.queue
    while queue.state_dict()["chosen"] is None:
        one.step(x)
    queue.steps = max(queue.steps, queue.config.plain_steps)
    return str(queue.state_dict()["chosen"])


def measure(trials: int) -> dict[str, Any]:
    """Returns the milliseconds of a step by model and method, one per trial, and the choice for each model."""
    group = Group.open(WorkerEnv.read())
    rows: dict[str, list[float]] = {}
    chosen: dict[str, str] = {}
    for model, (_, shape) in MODELS.items():
        x = torch.randn(shape, generator=torch.Generator().manual_seed(group.rank))
        arms = {method: arm(model, method, group) for method in (*CANDIDATES, AUTO)}
        chosen[model] = decide(arms[AUTO], x)
        ms: dict[str, list[float]] = {method: [] for method in arms}
        for trial in range(trials):
            first = trial % len(arms)
            for method in [*arms][first:] + [*arms][:first]:
                arms[method].step(x)
                group.gather(torch.zeros(1))
                began = time.perf_counter()
                for _ in range(STEPS):
                    arms[method].step(x)
                group.gather(torch.zeros(1))
                ms[method].append((time.perf_counter() - began) / STEPS * 1000)
        best = min(CANDIDATES, key=lambda method: statistics.median(ms[method]))
        rows |= {f"{model}, {method}": values for method, values in ms.items()}
        rows[f"{model}, {BEST}"] = ms[best]
    group.close()
    return {"ms": rows, "chosen": chosen}
