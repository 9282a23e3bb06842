"""Loss and measure of the examples that classify images."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional

Batch = tuple[torch.Tensor, torch.Tensor]
"""Images (n, channels, height, width), and labels (n,) int64."""


def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Returns the mean cross entropy."""
    images, labels = batch
    return functional.cross_entropy(model(images), labels)


def measure(model: nn.Module, batch: Batch) -> Mapping[str, torch.Tensor]:
    """Returns loss and accuracy."""
    images, labels = batch
    logits = model(images)
    return {
        "loss": functional.cross_entropy(logits, labels),
        "accuracy": (logits.argmax(1) == labels).double().mean(),
    }
