"""Functions for the ranks of test_hierarchy, which stand for several nodes."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dtj_trainer.communication import CommunicationConfig
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.errors import ConfigError
from dtj_trainer.strategies import DdpConfig, DdpScratchConfig, make

STRATEGIES = {"ddp": DdpConfig(bucket_cap_mb=0.02), "ddp_scratch": DdpScratchConfig(bucket_cap_mb=0.02)}
"""Buckets of one or two layers."""
WIDTHS = (33, 47, 61, 5)
"""No bucket has a multiple of 2 or 3 elements by chance."""


def open_nodes(nodes: int, interleaved: bool = False) -> Group:
    """Joins the group as one of its ranks on `nodes` nodes."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local = world // nodes
    os.environ |= {"LOCAL_RANK": str(rank // nodes if interleaved else rank % local), "LOCAL_WORLD_SIZE": str(local)}
    return Group.open(WorkerEnv.read())


def train(group: Group, strategy: str, options: dict[str, Any], steps: int) -> list[torch.Tensor]:
    """Returns the weights after some steps."""
    torch.manual_seed(0)
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(WIDTHS)]
    module = nn.Sequential(*layers)
    made = make(STRATEGIES[strategy], None, CommunicationConfig(**options))
    model = made.wrap(module, group)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for step in range(steps):
        for last in (False, True):
            torch.manual_seed(1000 * step + 2 * group.rank + last)
            with made.accumulate(model, last=last):
                torch.autograd.backward((model(torch.randn(8, WIDTHS[0])) - 1).square().mean())
        made.finish(model)
        made.clip(model, 1.0)
        optimizer.step()
        made.zero_grad(model, optimizer)
    return [p.detach().clone() for p in module.parameters()]


def compare(out: str, nodes: int, steps: int) -> None:
    """Trains with and without levels. Rank 0 writes the greatest difference, and whether ranks have the same bits."""
    group = open_nodes(nodes)
    results = {}
    for strategy in STRATEGIES:
        flat = train(group, strategy, {"method": "none"}, steps)
        for method in ("none", "bf16", "fp16"):
            found = train(group, strategy, {"method": method, "hierarchical": True}, steps)
            bits = torch.cat([p.reshape(-1) for p in found]).numpy().tobytes()
            results[f"{strategy} {method}"] = {
                "gap": max(float((a - b).abs().max()) for a, b in zip(flat, found, strict=True)),
                "alike": len(set(group.all_objects(bits))) == 1,
            }
    if group.rank == 0:
        Path(out).write_text(json.dumps(results))
    group.close()


def reject(out: str) -> None:
    """Writes the error of a group whose consecutive ranks are on different nodes."""
    group = open_nodes(2, interleaved=True)
    try:
        train(group, "ddp", {"hierarchical": True}, 1)
    except ConfigError as error:
        Path(f"{out}-{group.rank}").write_text(str(error))
    group.close()


def break_off(out: str) -> None:
    """Ends the backward of a step by an exception on all ranks, and trains on."""
    group = open_nodes(2)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64))
    made = make(STRATEGIES["ddp_scratch"], None, CommunicationConfig(hierarchical=True))
    model = made.wrap(module, group)
    handle = module[0].weight.register_hook(_fail)
    try:
        torch.autograd.backward(model(torch.ones(8, 64)).sum())
    except ZeroDivisionError:
        handle.remove()
    made.zero_grad(model, torch.optim.SGD(module.parameters(), lr=0.1))
    torch.autograd.backward(model(torch.full((8, 64), float(group.rank))).sum())
    made.finish(model)
    mine = module[2].bias.grad
    assert mine is not None
    if group.rank == 0:
        Path(out).write_text(json.dumps(mine.tolist()))
    group.close()


def _fail(_: torch.Tensor) -> None:
    raise ZeroDivisionError
