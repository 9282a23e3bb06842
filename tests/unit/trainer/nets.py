"""Small models of unusual shape, which a strategy must train as one process without a strategy does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH = 6


@dataclass
class Output:
    """The output of a block that returns more than one tensor."""

    extra: torch.Tensor
    hidden: torch.Tensor


class Block(nn.Module):
    """x + W tanh(V x), and its result in the form that the model wants."""

    def __init__(self, form: Callable[[torch.Tensor], Any] = lambda hidden: hidden) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.form = form

    def forward(self, x: torch.Tensor) -> Any:
        return self.form(x + self.out(self.inner(x).tanh()))


class Net(nn.Module):
    """Three blocks and a head; subclasses use them as real models do."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(WIDTH, WIDTH)
        self.blocks: nn.Module = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 1)
        self.steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for block in self.blocks.children():
            x = self.call(block, x)
        out: torch.Tensor = self.head(x)
        return out

    def call(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = block(x)
        return out


class Frozen(Net):
    """A whole block, half of another and the entrance are not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.enter.requires_grad_(False)
        self.blocks[1].requires_grad_(False)  # type: ignore[index]
        self.blocks[2].inner.requires_grad_(False)  # type: ignore[index]


class Shared(Net):
    """Two blocks have a weight in common, another one is the head's."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[2].inner.weight = self.blocks[0].inner.weight  # type: ignore[index]
        self.head = nn.Linear(WIDTH, WIDTH)
        self.head.weight = self.blocks[1].out.weight  # type: ignore[index]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).mean(1, keepdim=True)


class Twice(Net):
    """Each block is called twice in a forward, the last in another order than it was built."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b, c = self.blocks.children()
        out: torch.Tensor = self.head(a(c(b(b(a(self.enter(x)))))))
        return out


class SameTwice(Net):
    """One block stands in the list twice."""

    def __init__(self) -> None:
        super().__init__()
        block = Block()
        self.blocks = nn.ModuleList([block, Block(), block])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:  # type: ignore[attr-defined]
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


class Forms(Net):
    """Blocks give a dict, a dataclass, and a tuple whose first tensor nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        forms: list[Callable[[torch.Tensor], Any]] = [
            lambda h: {"extra": [h * 2], "hidden": h.clone()},
            lambda h: Output(extra=h * 2, hidden=h.clone()),
            lambda h: (h * 2, h.clone()),
        ]
        self.blocks = nn.ModuleList(Block(form) for form in forms)

    def call(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        out = block(x)
        hidden: torch.Tensor = (
            out["hidden"] if isinstance(out, dict) else out[1] if isinstance(out, tuple) else out.hidden
        )
        return hidden


class Unused(Net):
    """Every second step, which is two forwards, leaves a block out."""

    def call(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        middle = block is self.blocks[1]  # type: ignore[index]
        left_out = middle and self.training and self.steps // 2 % 2 == 1
        self.steps += middle and self.training
        return x if left_out else super().call(block, x)


class Dtypes(Net):
    """Half of a block computes in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[1].inner.double()  # type: ignore[index]
        self.blocks[1].inner.register_forward_pre_hook(lambda _, x: x[0].double())  # type: ignore[index]
        self.blocks[1].inner.register_forward_hook(lambda _, __, y: y.float())  # type: ignore[index]


class Nested(Net):
    """Lists in a list, none of which has a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.ModuleList([Block(), nn.LayerNorm(WIDTH)]) for _ in range(2))

    def call(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        for part in block.children():
            x = part(x)
        return x


class Buffers(Net):
    """Buffers that a checkpoint holds and one that it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((), 0.5))
        self.register_buffer("mask", torch.ones(WIDTH, dtype=torch.bool))
        self.register_buffer("cache", torch.ones(WIDTH), persistent=False)

    def call(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return super().call(block, x * self.scale * self.mask * self.cache)  # type: ignore[operator]


class Recomputes(Net):
    """The model's own activation checkpointing, of either kind."""

    def call(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = checkpoint(block, x, use_reentrant=block is self.blocks[2])  # type: ignore[index]
        return out


class RecomputesTwice(Net):
    """A block that is called again, later and at once, and computed again for each of its calls, in
    a backward of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        first, *others = self.blocks.children()
        for block in (first, *others, first, first):
            x = checkpoint(block, x, use_reentrant=True)
        out: torch.Tensor = self.head(x)
        return out


class Strided(Net):
    """A weight whose memory is in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[0].inner.weight = nn.Parameter(torch.randn(WIDTH, WIDTH).t() / 4)  # type: ignore[index]


class Normalized(Net):
    """Running statistics, of which each rank has its own.

    Not in NETS: a batch that is cut has other means than the whole.
    """

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def call(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return super().call(block, self.norm(x) if block is self.blocks[1] else x)  # type: ignore[index]


class Dropped(Net):
    """Dropout, and what was drawn for it. Not in NETS: ranks draw otherwise than one process."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.drawn: list[list[bool]] = []

    def call(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        kept = self.dropout(torch.ones_like(x))
        self.drawn.append((kept > 0).flatten().tolist())
        return super().call(block, x * kept)


NETS: dict[str, type[Net]] = {
    net.__name__: net
    for net in (Frozen, Shared, Twice, SameTwice, Forms, Unused, Dtypes, Nested, Buffers, Recomputes, Strided)
}
