"""Functions for the ranks of test_own_scheduler."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, StepLR

from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.components.optimizer import OptimizerConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.examples import gpt
from dtj_trainer.state import StateConfig
from dtj_trainer.trainer import Trainer
from tests.unit.trainer.ranks import Records
from tests.unit.trainer.ranks_shared import tiny_gpt, tokens


def halving(optimizer: Optimizer, steps: int) -> LRScheduler:
    assert steps == 6
    return StepLR(optimizer, step_size=2, gamma=0.5)


def cycle(optimizer: Optimizer, steps: int) -> LRScheduler:
    """Returns a scheduler that needs the number of steps."""
    return OneCycleLR(optimizer, max_lr=0.01, total_steps=steps)


def rates(folder: str) -> None:
    """Trains with schedulers of its own, at once and with a break. Writes the rate of each step, and the losses."""
    results = {}
    with Trainer(TrainerConfig(steps=6)) as trainer:
        for name, scheduler in (("halving", halving), ("cycle", cycle)):
            for run, breaks in (("whole", False), ("broken", True)):
                records = Records()
                checkpoint = CheckpointConfig(directory=Path(folder) / f"{name}-{run}", every_steps=3)
                trainer.config = TrainerConfig(
                    steps=6, global_batch_size=6, optimizer=OptimizerConfig(lr=0.01),
                    state=StateConfig(log_every_steps=1, checkpoint=checkpoint),
                )  # fmt: skip
                end = (lambda step: trainer.state.end() if step == 2 else None) if breaks else None
                for after_step in (end, None) if breaks else (None,):
                    trainer.fit(
                        tiny_gpt(), tokens(36), loss=gpt.loss, scheduler=scheduler, after_step=after_step,
                        sinks=[records],
                    )  # fmt: skip
                results[f"{name} {run}"] = [[record["lr"], record["loss"]] for record in records.records]
    (Path(folder) / "out.json").write_text(json.dumps(results))
    assert torch.is_grad_enabled()
