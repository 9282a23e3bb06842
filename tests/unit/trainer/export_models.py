"""Factories that the tests of the export name, in a module that gives example inputs."""

from __future__ import annotations

import itertools

import torch
from torch import nn


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))


class Tied(nn.Module):
    """An embedding that the output layer shares."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.embedding(tokens))
        return out


class Counting(nn.Module):
    """Returns other outputs at each call: a program has the number of the call that was traced."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.calls = itertools.count()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x) + next(self.calls)
        return out


class Branching(nn.Module):
    """Depends on a value of its input, which torch.export can't follow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x if x.sum() > 0 else -x)
        return out


def needs_size(size: int) -> nn.Module:
    return nn.Linear(size, size)


def no_module() -> str:
    return "model"


def example_inputs() -> tuple[torch.Tensor]:
    return (torch.arange(6.0).reshape(2, 3),)


dynamic_shapes = ({0: torch.export.Dim("batch")},)
