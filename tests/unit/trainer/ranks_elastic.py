"""Functions for the ranks of tests of a changed world size, importable by the forked processes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.components.optimizer import OptimizerConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.config_parser import build
from dtj_trainer.data.source import TensorData
from dtj_trainer.state import State, StateConfig
from dtj_trainer.trainer import Trainer
from tests.unit.trainer.ranks_snapshots import apart, killing

SAMPLES, BATCH = 20, 8


def plain() -> nn.Module:
    """Builds a model without random numbers, so that only the samples of a step decide its loss."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Sequential(nn.Linear(8, 4), nn.Tanh()))


def train(out: str, directory: str, options: dict[str, Any]) -> None:
    """Trains by the Trainer, and appends a line a step: the samples of each rank's micro-batches."""
    apart()
    numbers = torch.arange(SAMPLES)
    data = TensorData(numbers, torch.sin(numbers[:, None] * torch.arange(1.0, 5.0)))
    config: TrainerConfig = build(TrainerConfig, {"global_batch_size": BATCH, **options})
    config.optimizer = OptimizerConfig(lr=0.05)
    checkpoint = CheckpointConfig(directory=Path(directory), every_steps=1000, snapshot_every_steps=1)
    config.state = StateConfig(log_every_steps=1, agree_seconds=0.0, checkpoint=checkpoint)
    with Trainer(config) as trainer:
        calls: list[list[int]] = []

        def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            ids, x = batch
            calls.append(ids.tolist())
            return (model(x) - x).square().mean()

        def after_step(step: int) -> None:
            everywhere = trainer.group.all_objects(list(calls))
            calls.clear()
            if trainer.group.rank == 0:
                line = {"step": step, "micro": everywhere, "world": trainer.group.world_size}
                with Path(directory, "steps.jsonl").open("a") as file:
                    file.write(json.dumps(line) + "\n")
            killing(out, step)

        trainer.fit(plain(), data, loss=loss, after_step=after_step)


def stopped(at: int) -> None:
    """Trains without a volume and without snapshots on the way; the last rank gets a SIGTERM in a step."""
    apart()
    model = plain()
    state = State(StateConfig(checkpoint=CheckpointConfig(snapshot_every_steps=1000), agree_seconds=0.0), model=model)
    for step in state.steps(9):
        with torch.no_grad():
            next(model.parameters()).add_(1.0)
        if step == at and state.group.rank == state.group.world_size - 1:
            os.kill(os.getpid(), signal.SIGTERM)
    print("final", next(model.parameters()).detach().mean().item())
    state.close()


def poisoned(out: str) -> None:
    """Trains without a volume; from step 5 on the weights of one rank are no numbers."""
    apart()
    model = plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    config = StateConfig(checkpoint=CheckpointConfig(snapshot_every_steps=1))
    state = State(config, model=model, optimizer=optimizer)
    for step in state.steps(9):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 5 and os.environ["DTJ_ATTEMPT"] == "1" and os.environ["RANK"] == "1":
            with torch.no_grad():
                next(model.parameters()).view(-1)[3] = float("nan")
        killing(out, step)
    assert all(p.isfinite().all() for p in model.parameters())
    state.close()
