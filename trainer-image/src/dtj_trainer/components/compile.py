"""torch.compile: each block's forward and backward become a graph, and the graph kernels. Time at the start for time of a step.

What is compiled is a block's `forward`, not its call, which is what `nn.Module.compile` would trace. A call runs the hooks by
which fully_shard and fsdp_scratch fetch and free weights; ours would be traced, and break the graph in several places. So they
stay outside, around it. Names, state dicts and hooks are as they were.

Block by block, as torch advises for fully_shard, under every strategy:
- blocks of one class that differ in nothing but weights share one graph: compiling takes as long for 12 of them as for 3;
- the gradients of a graph come all at once at its end. Those of a block travel while the block before it is computed; were the
  model one graph, all of them would travel after it. torch's answer for its DDP is to cut the graph where a bucket ends, which
  blocks don't need, and which ends in an AssertionError with a `bucket_cap_mb` below 1;
- a GPT compiled as a whole had the same step (400 ms; by blocks 402; not compiled 454: six blocks, width 256, one CPU core).

A model without blocks is one graph. So is a plain Sequential where each rank holds the whole model: its members are layers, and
what there is to fuse is between them. Under sharding they are units with hooks of their own, and each is compiled by itself.

What `recompute` has changed is compiled, not the other way round: torch then traces the checkpoint as one operator, and the graph
keeps what its mode says (three blocks of width 64: none 3.4 MB from forward to backward, selective 2.2, block 0.4).
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from types import MethodType
from typing import Any, Literal

import torch
from torch import nn

from dtj_trainer.errors import ConfigError
from dtj_trainer.strategies import DdpConfig, DdpScratchConfig, StrategyConfig, blocks
from dtj_trainer.torch_private import set_compiler

Compile = bool | Literal["inductor", "aot_eager"]
"""True is inductor. aot_eager makes the graphs and runs them with torch's own kernels: no compiler, nothing faster; it tells
whether a difference comes from the graph or from the kernels."""
FIRST_BUCKET_MB = 1.0
"""What torch takes for DDP's first bucket when it cuts a graph; it refuses others that are smaller."""

GRAPHS_PER_BLOCK = 8
"""torch's own limit for one function, after which it runs the rest uncompiled."""


def check_compiler(wanted: Compile, local_rank: int) -> None:
    """Compiles one addition: 0.1 s beside the imports that a compiled model needs anyway. Raises ConfigError if that fails.

    To be called before the first collective, in which the other ranks would wait for one that has no compiler.
    """
    if wanted is False or wanted == "aot_eager":
        return
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device = torch.device("cuda", local_rank % gpus) if gpus else torch.device("cpu")
    try:
        torch.compile(_one_more, backend="inductor")(torch.zeros(8, device=device))
    except (RuntimeError, OSError, ImportError) as e:
        why = textwrap.shorten(str(e).partition("Set TORCHDYNAMO_VERBOSE")[0], 300)
        raise ConfigError(
            f"compile={wanted!r} can't compile for {device.type} here ({why}): "
            "take an image with g++ and Python's headers, or write compile: false"
        ) from e


def _one_more(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def compile_forward(model: nn.Module, wanted: Compile, strategy: StrategyConfig, pattern: str | None = None) -> None:
    """Changes forward in place, of each block or of the model. Before the strategy's `wrap`, after `recompute`."""
    if wanted is False:
        return
    whole_on_each_rank = isinstance(strategy, (DdpConfig, DdpScratchConfig))
    parts = blocks(model, pattern) if not (whole_on_each_rank and isinstance(model, nn.Sequential)) else []
    small = isinstance(strategy, DdpConfig) and strategy.bucket_cap_mb < FIRST_BUCKET_MB
    # torch counts graphs by code, and blocks share theirs: with a number of its own that its forward reads each needs one.
    set_compiler(cut_at_buckets=not parts and not small, graphs=GRAPHS_PER_BLOCK * len(parts))
    for part in parts or [model]:
        part.forward = _compiled(part, "inductor" if wanted is True else wanted)


def _compiled(part: nn.Module, backend: str) -> Callable[..., Any]:
    forward = part.forward
    if isinstance(forward, MethodType):  # bound again, so that a deepcopy computes with weights of its own
        return MethodType(torch.compile(forward.__func__, backend=backend), part)
    compiled: Callable[..., Any] = torch.compile(forward, backend=backend)
    return compiled
