"""torch.compile: each block's forward and backward become a graph.

Compiling takes time at the start and saves time in each step. A block's `forward` is compiled, not
its call, which `nn.Module.compile` would trace. A call runs the hooks by which fully_shard and
fsdp_scratch gather and free weights; our hooks would be traced, and would break the graph in
several places. Around a compiled forward they stay outside. Names, state dicts and hooks do not
change.

Block by block, as torch advises for fully_shard, under every strategy:
- blocks of one class that differ in nothing but weights share one graph: 12 of them compile in the
  time of 3;
- the gradients of a graph come all at once at its end. A block's gradients travel while the block
  before it is computed; were the model one graph, all gradients would travel after it. For its own
  DDP torch cuts the graph where a bucket ends; blocks don't need that cut, and it raises an
  AssertionError with a `bucket_cap_mb` below 1;
- a GPT compiled as a whole had the same step (400 ms; by blocks 402; not compiled 454: six blocks,
  width 256, one CPU core).

A model without blocks is one graph, and so is a plain Sequential where each rank holds the whole model:
its members are layers, and kernels are fused between layers. Under sharding its members have hooks
of their own, and each is compiled by itself.

Activation checkpointing comes first, and its result is compiled: torch then traces the checkpoint
as one operator, and the graph keeps what its mode asks for (three blocks of width 64: none 3.4 MB
from forward to backward, selective 2.2, block 0.4).
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from types import MethodType
from typing import Any, Literal

import torch
from torch import nn

from dtj_trainer.errors import ConfigError
from dtj_trainer.strategies import DdpConfig, DdpScratchConfig, StrategyConfig, Zero1Config, blocks
from dtj_trainer.torch_private import set_compiler

Compile = bool | Literal["inductor", "aot_eager"]
"""True is inductor. aot_eager makes the graphs and runs them with torch's own kernels: no compiler,
nothing faster. Use aot_eager to find whether a difference comes from the graph or the kernels."""
FIRST_BUCKET_MB = 1.0
"""The size that torch assumes for DDP's first bucket when it cuts a graph. torch rejects a smaller `bucket_cap_mb`."""

GRAPHS_PER_BLOCK = 8
"""torch's own limit of graphs for one function, after which it runs the rest uncompiled."""


def check_compiler(wanted: Compile, local_rank: int) -> None:
    """Compiles one addition, which takes 0.1 s beside the imports that a compiled model needs anyway.

    Raises ConfigError if that fails. Call it before the first collective, in which the other ranks
    would wait for a rank that has no compiler.
    """
    if wanted is False or wanted == "aot_eager":
        return
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device = torch.device("cuda", local_rank % gpus) if gpus else torch.device("cpu")
    try:
        torch.compile(_add_one, backend="inductor")(torch.zeros(8, device=device))
    except (RuntimeError, OSError, ImportError) as e:
        why = textwrap.shorten(str(e).partition("Set TORCHDYNAMO_VERBOSE")[0], 300)
        raise ConfigError(
            f"compile={wanted!r} can't compile for {device.type} here ({why}): "
            "take an image with g++ and Python's headers, or write compile: false"
        ) from e


def _add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def compile_forward(model: nn.Module, wanted: Compile, strategy: StrategyConfig, pattern: str | None = None) -> None:
    """Compiles forward in place, of each block or of the model.

    Call it after `checkpoint_activations` and before the strategy's `wrap`.
    """
    if wanted is False:
        return
    whole_on_each_rank = isinstance(strategy, (DdpConfig, DdpScratchConfig, Zero1Config))
    modules = blocks(model, pattern) if not (whole_on_each_rank and isinstance(model, nn.Sequential)) else []
    small = isinstance(strategy, DdpConfig) and strategy.bucket_cap_mb < FIRST_BUCKET_MB
    # torch counts graphs by code, which blocks share. Each block needs a graph if its forward reads
    # a number of its own.
    set_compiler(cut_at_buckets=not modules and not small, graphs=GRAPHS_PER_BLOCK * len(modules))
    for module in modules or [model]:
        module.forward = _compiled(module, "inductor" if wanted is True else wanted)


def _compiled(module: nn.Module, backend: str) -> Callable[..., Any]:
    forward = module.forward
    if isinstance(forward, MethodType):
        # Bound again, so that a deepcopy computes with its own weights.
        return MethodType(torch.compile(forward.__func__, backend=backend), module)
    compiled: Callable[..., Any] = torch.compile(forward, backend=backend)
    return compiled
