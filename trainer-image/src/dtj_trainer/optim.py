"""The optimizer of a run by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from dtj_trainer.errors import ConfigError


@dataclass(kw_only=True, slots=True)
class OptimizerConfig:
    """torch.optim's own options, under their own names."""

    name: Literal["adamw", "sgd"] = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if self.name not in ("adamw", "sgd"):
            raise ConfigError(f"optimizer.name={self.name!r}: write adamw or sgd")
        if self.lr <= 0:
            raise ConfigError(f"optimizer.lr={self.lr}: write a rate above 0")
        if self.weight_decay < 0:
            raise ConfigError(f"optimizer.weight_decay={self.weight_decay}: write 0 or more")
        self.betas = (float(self.betas[0]), float(self.betas[1]))  # YAML gives a list


def make_optimizer(parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> torch.optim.Optimizer:
    """Built after the strategy has wrapped the model, so that it holds the parameters that are really trained."""
    wanted = [p for p in parameters if p.requires_grad]
    if config.name == "sgd":
        return torch.optim.SGD(wanted, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay)
    return torch.optim.AdamW(wanted, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay)
