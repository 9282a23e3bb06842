"""Functions for the ranks of tests of memory snapshots, importable by the forked processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.communication import CommunicationConfig
from dtj_trainer.components.optimizer import OptimizerConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.config_parser import build
from dtj_trainer.snapshots import room
from dtj_trainer.state import State, StateConfig
from dtj_trainer.strategies import KINDS
from dtj_trainer.trainer import Trainer


class Noisy:
    """A data set whose samples are drawn from the global generators, so that a lost generator shows."""

    def __len__(self) -> int:
        return 40

    def get_batch(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.stack([torch.full((8,), float(i) / 40) for i in indices])
        return x + torch.randn(x.shape) / 10, x.sum(1, keepdim=True)


def net() -> nn.Module:
    """Builds a model with two blocks, dropout and running statistics."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 8)) for _ in range(2)]
    return nn.Sequential(*blocks, nn.BatchNorm1d(8), nn.Linear(8, 1))


def own_loop(out: str, directory: str | None, steps: int) -> None:
    """Trains in a loop of the user's own, with two parts that only State knows."""
    apart()
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    torch.manual_seed(int(os.environ["RANK"]))
    config = CheckpointConfig(directory=Path(directory) if directory else None, snapshot_every_steps=1)
    state = State(
        StateConfig(log_every_steps=1, checkpoint=config), model=model, optimizer=optimizer, scheduler=scheduler
    )
    wrapped = nn.parallel.DistributedDataParallel(model)
    for step in state.steps(steps):
        x = torch.randn(4, 8)
        loss = (wrapped(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        state.report(loss=loss)
        killing(out, step)
    state.close()


def killing(out: str, step: int) -> None:
    """Ends this rank as a crash does, once: at this step of the attempt that comes first."""
    mark = Path(f"{out}-killed-{os.environ['RANK']}")
    if step == int(os.environ.get("KILL_AT", "-1")) and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def apart() -> None:
    """Gives this rank a pod, as the agent's environment would; PODS ranks have one together."""
    rank, size = int(os.environ["RANK"]), int(os.environ.get("RANKS_IN_POD", "1"))
    own = {"GROUP_RANK": rank // size, "DTJ_ORDINAL": rank // size, "LOCAL_RANK": rank % size, "LOCAL_WORLD_SIZE": size}
    os.environ.update({name: str(value) for name, value in own.items()})


def train(out: str, strategy: str, directory: str | None, steps: int, options: dict[str, Any]) -> None:
    """Trains by the Trainer, and appends each step's exact loss to a file of this rank."""
    apart()
    if os.environ.get("NO_ROOM"):
        room.free_bytes = lambda _: 1000  # type: ignore[assignment]
    config = TrainerConfig(
        steps=steps,
        global_batch_size=8,
        ema_decay=None if strategy in ("fsdp_scratch", "zero1") else 0.9,
        optimizer=OptimizerConfig(lr=0.01),
        strategy=build(KINDS[strategy], {k: v for k, v in options.items() if k != "communication"}, "strategy."),
        communication=CommunicationConfig(**options.get("communication", {})),
        state=StateConfig(
            log_every_steps=1,
            agree_seconds=0.0,
            checkpoint=CheckpointConfig(
                directory=Path(directory) if directory else None, every_steps=6, snapshot_every_steps=1
            ),
        ),
    )

    with Trainer(config) as trainer:

        def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            x, y = batch
            return (model(x) - y).square().mean()

        trainer.fit(net(), Noisy(), loss=loss, after_step=lambda step: killing(out, step))
