"""Ranks of test_auto_batch: search a size in memory where the model only fits in shards."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import torch
from torch import nn

from dtj_trainer.auto_batch import find_micro_batch_size
from dtj_trainer.components.precision import Precision
from dtj_trainer.config import TrainerConfig
from dtj_trainer.distributed.device_memory import at_most
from dtj_trainer.errors import ConfigError
from dtj_trainer.strategies import DdpConfig, FsdpConfig, FsdpScratchConfig, HsdpConfig, StrategyConfig
from dtj_trainer.trainer import Trainer

MIB = 2**20
M_MMAP_THRESHOLD = -3  # malloc.h
SAMPLES = 128
STRATEGIES: dict[str, StrategyConfig] = {
    "ddp": DdpConfig(),
    "fsdp": FsdpConfig(),
    "hsdp": HsdpConfig(shard_size=2),
    "fsdp_scratch": FsdpScratchConfig(),
}


class Table(nn.Module):
    """4 bytes a row; a sample takes up to 128 KiB from forward to backward."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.zeros(rows))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (n,) to (n,)."""
        return (x[:, None] * self.rows[: MIB // 32]).exp().mean(1)


def loss(model: nn.Module, batch: tuple[torch.Tensor]) -> torch.Tensor:
    value: torch.Tensor = model(batch[0]).square().mean()
    return value


def auto(out: str) -> None:
    """Searches with 8 MiB of weights, by each strategy; rank 0 writes the sizes of all ranks.

    Whole weights with gradients, Adam's state and averages are 40 MiB. Half of the weights, with
    whole gradients that are accumulated, are 28 MiB. There are 39.75 MiB, of which half a MiB goes
    to each sample; rank 1 has a little less.
    """
    # Freed memory is returned to the kernel at once, so that the limit holds for what is in use.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MIB // 2)
    with Trainer(TrainerConfig(steps=1, global_batch_size=SAMPLES, ema_decay=0.9)) as trainer:
        group = trainer.group

        def search(model: nn.Module, strategy: StrategyConfig, room: int | None) -> int:
            precision = Precision(trainer.config.precision, group)
            share = (torch.ones(SAMPLES // 2),)
            with at_most(room):
                return find_micro_batch_size(
                    model, share, loss, config=trainer.config, strategy=strategy, group=group, precision=precision
                )

        outcome: dict[str, str | int] = {}
        for name, strategy in STRATEGIES.items():
            tiny = search(nn.Sequential(*(Table(8) for _ in range(4))), strategy, None)  # also loads what it needs
            assert tiny == SAMPLES // 2, "all of the share fits, then all of it is taken"
            model = nn.Sequential(*(Table(MIB // 2) for _ in range(4)))
            before = {n: p.clone() for n, p in model.named_parameters()}
            try:
                outcome[name] = search(model, strategy, (159 - group.rank) * MIB // 4)
            except ConfigError as e:
                outcome[name] = str(e)
            assert all(torch.equal(p, before[n]) for n, p in model.named_parameters()), "the model is as it was"
            assert group.all_objects(group.rank) == [0, 1], "and so is the group"
        everyone = group.all_objects(outcome)
        if group.rank == 0:
            Path(out).write_text(json.dumps(everyone))
