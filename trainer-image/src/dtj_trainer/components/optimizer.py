"""The optimizer of a run by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from dtj_trainer.components.large_batch import Lamb, Lars
from dtj_trainer.errors import ConfigError

NAMES = ("adamw", "sgd", "lamb", "lars")


@dataclass(kw_only=True, slots=True)
class OptimizerConfig:
    """Options of torch.optim, under their own names, and of LAMB and LARS."""

    name: Literal["adamw", "sgd", "lamb", "lars"] = "adamw"
    """lamb and lars scale each layer's step by the norm of its weights, for batches of thousands of samples."""
    lr: float = 1e-3
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = 0.9
    """Used by sgd and lars only."""
    trust: float = 0.001
    """Used by lars only: the share of a layer's weights that a step with lr 1 may change."""
    fused: bool | None = None
    """One kernel for the whole update; None: only on a GPU."""
    decay_vectors: bool = True
    """False: no weight decay for norms and biases (parameters of fewer than two dimensions), as is
    usual for language models."""

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise ConfigError(f"optimizer.name={self.name!r}: write {' or '.join(NAMES)}")
        if self.trust <= 0:
            raise ConfigError(f"optimizer.trust={self.trust}: write a share above 0, such as 0.001")
        if self.fused and self.name in ("lamb", "lars"):
            raise ConfigError(f"optimizer.fused: {self.name} has no fused kernel: leave it out")
        if self.lr <= 0:
            raise ConfigError(f"optimizer.lr={self.lr}: write a rate above 0")
        if self.weight_decay < 0:
            raise ConfigError(f"optimizer.weight_decay={self.weight_decay}: write 0 or more")
        if not (len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)):
            raise ConfigError(f"optimizer.betas={self.betas}: write two numbers from 0 to below 1, such as [0.9, 0.95]")
        if self.momentum < 0:
            raise ConfigError(f"optimizer.momentum={self.momentum}: write 0 or more")
        self.betas = (float(self.betas[0]), float(self.betas[1]))  # YAML has lists

    @property
    def moments(self) -> int:
        """The numbers that the optimizer keeps for each parameter."""
        return 2 if self.name in ("adamw", "lamb") else 1 if self.momentum or self.name == "lars" else 0


TENSOR_WISE = {
    "Adafactor", "AdaLomo", "Galore", "GaLoreAdamW", "KronPSGD", "Kron", "LAMB", "Lamb", "FusedLAMB", "LARS", "Lars",
    "MuonAdamW", "Muon", "NovoGrad", "NvNovoGrad", "DistributedShampoo", "SOAP", "Shampoo", "SM3",
}  # fmt: skip
"""Optimizer classes that compute with whole tensors: their norms, rows and columns."""


def check_element_wise(optimizer: torch.optim.Optimizer, strategy: str) -> None:
    """Raises ConfigError for an optimizer that would silently train differently on flat shards of tensors."""
    for kind in type(optimizer).__mro__:
        if kind.__name__ in TENSOR_WISE:
            raise ConfigError(
                f"optimizer {type(optimizer).__name__} computes with whole tensors (their norms, rows or columns), and "
                f"strategy {strategy} has flat shards of them: write strategy ddp, or fsdp if the optimizer takes "
                "DTensors"
            )


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Returns the optimizer of a wrapped model, whose parameters are those that are really trained."""
    wanted = [p for p in model.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [{"params": wanted}]
    if not config.decay_vectors:
        groups = [
            {"params": [p for p in wanted if p.dim() >= 2]},
            {"params": [p for p in wanted if p.dim() < 2], "weight_decay": 0.0},
        ]
    groups = [g for g in groups if g["params"]]
    fused = config.fused if config.fused is not None else all(p.device.type == "cuda" for p in wanted)
    if config.name == "lars":
        return Lars(
            groups, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay, trust=config.trust
        )
    if config.name == "lamb":
        return Lamb(groups, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay)
    if config.name == "sgd":
        return torch.optim.SGD(
            groups, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay, fused=fused
        )
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=fused)
