"""A task: the arguments of `Trainer.fit` as one object, which `dtj-train` runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from dtj_trainer.components.validation import Measure
from dtj_trainer.data.loader import StreamData
from dtj_trainer.data.source import BatchDataset, MapDataset
from dtj_trainer.errors import ConfigError

Data = MapDataset | BatchDataset
Loss = Callable[[nn.Module, Any], torch.Tensor]
"""(model, batch) -> mean loss over the batch."""
Flops = float | Literal["auto"]
"""FLOPs of forward and backward of one sample; auto: counted by the Trainer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A model, its data and its loss; `Trainer.fit` explains each field."""

    model: nn.Module
    data: Data | StreamData
    loss: Loss
    validation: Data | None = None
    measure: Measure | None = None
    optimizer: Callable[[nn.Module], Optimizer] | None = None
    scheduler: Callable[[Optimizer, int], LRScheduler] | None = None
    flops_per_sample: Flops | None = None
    tokens_per_sample: float | None = None
    images_per_sample: float | None = None

    def arguments(self) -> dict[str, Any]:
        """Returns the fields by name, for `trainer.fit(**task.arguments())`."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def scalar_loss(loss: Loss) -> Loss:
    """Returns a loss that raises ConfigError unless `loss` returns one number with a gradient."""

    def checked(model: nn.Module, batch: Any) -> torch.Tensor:
        value = loss(model, batch)
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            is_tensor = isinstance(value, torch.Tensor)
            given = f"a tensor of shape {tuple(value.shape)}" if is_tensor else f"a {type(value).__name__}"
            raise ConfigError(f"loss gave {given}: return one number, the mean over the batch, such as loss.mean()")
        if not value.requires_grad:
            raise ConfigError(
                "loss gave a number without gradient: compute it from the model's output, without detach or no_grad"
            )
        return value.reshape(())

    return checked
