"""Functions for the ranks of tests of resharded snapshots, importable by the forked processes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.checkpoint.contents import CheckpointState, leaves
from dtj_trainer.distributed.flat_shard import FlatShard
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.snapshots.choice import Choice
from dtj_trainer.snapshots.restore import Restore
from dtj_trainer.state import State, StateConfig
from dtj_trainer.strategies.fsdp import Fsdp, HsdpConfig
from dtj_trainer.strategies.scratch.fsdp import FsdpScratch
from dtj_trainer.strategies.scratch.zero import Zero, Zero2Config
from tests.unit.trainer.ranks_snapshots import apart


def uneven() -> nn.Module:
    """Builds a model whose dimensions no world size divides, with running statistics and frozen weights."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Sequential(nn.Linear(5, 7), nn.Tanh()), nn.BatchNorm1d(7), nn.Sequential(nn.Linear(7, 3), nn.Linear(3, 1))
    )
    model[2][0].bias.requires_grad_(False)
    return model


def own_loop(strategy: str, until: int, damaged: int = -1) -> None:
    """Trains a sharded model in a loop of the user's own; all ranks die in step `until`, with whole snapshots.

    Each gradient is a small whole number whatever the weights are, so it is exact in any world. The
    snapshot of rank `damaged` is changed once all ranks have chosen it.
    """
    apart()
    if damaged >= 0:
        damage_before_read(damaged)
    torch.distributed.init_process_group("gloo")
    model = wrapped(strategy)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    config = StateConfig(log_every_steps=1, checkpoint=CheckpointConfig(snapshot_every_steps=1))
    state = State(config, model=model, optimizer=optimizer, scheduler=scheduler)
    state.on_start = lambda state: report("loaded", state, model, optimizer)
    for step in state.steps(until + 1):
        if step == until:
            report("last", state, model, optimizer)
            if state._snapshots._task:
                state._snapshots._settle()
            state.group.all_objects(None)
            os._exit(0)
        model.train()
        model(torch.ones(4, 5) * step)  # running statistics
        output = model(torch.ones(4, 5))
        finish(strategy, model, output, step)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()


def wrapped(strategy: str) -> nn.Module:
    """Shards the model as a user's script does."""
    model = uneven()
    if strategy == "fsdp":
        for block in (model[0], model[2]):
            fully_shard(block)
        return fully_shard(model)
    group = Group.open(WorkerEnv.read())
    if strategy == "hsdp":
        return Fsdp(HsdpConfig(shard_size=2 if group.world_size % 2 == 0 else 1)).wrap(model, group)
    if strategy == "zero2":
        return Zero(Zero2Config(bucket_cap_mb=1e-4)).wrap(model, group)
    return FsdpScratch().wrap(model, group)


def finish(strategy: str, model: nn.Module, output: torch.Tensor, step: int) -> None:
    """Sets gradients that are the same in any world."""
    (output * 0).sum().backward()
    if strategy in ("fsdp_scratch", "zero2"):
        model.finish()
    for number, parameter in enumerate(p for p in model.parameters() if p.grad is not None):
        gradient = parameter.grad
        part = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        part.fill_(float((number + step) % 5 + 1))


def report(when: str, state: State, model: nn.Module, optimizer: Optimizer) -> None:
    """Prints a digest of the whole state, as a checkpoint would hold it."""
    tree = CheckpointState({"model": model, "optimizer": optimizer}).sharded()
    digest = hashlib.sha256()
    for key, leaf in sorted(leaves(tree), key=lambda each: each[0]):
        digest.update(f"{key} {bits(leaf, state.group)}".encode())
    print(when, state.step, digest.hexdigest(), flush=True)


def bits(leaf: Any, group: Group) -> Any:
    """Returns the whole tensor of a leaf, whatever shards it has."""
    if isinstance(leaf, DTensor):
        leaf = leaf.full_tensor()
    elif isinstance(leaf, FlatShard):
        pieces = group.all_objects((leaf.start, leaf.flat.tolist()))
        return [value for _, piece in sorted(pieces, key=lambda p: (bool(p[1]), p[0])) for value in piece]
    return leaf.reshape(-1).tolist() if isinstance(leaf, torch.Tensor) else leaf


def damage_before_read(rank: int) -> None:
    """Changes a byte of the data of this rank's chosen file, after the choice and before the read."""
    load: Callable[[Restore, Choice], bool] = Restore.load
    first: Iterator[bool] = iter([True])

    def damaged(self: Restore, choice: Choice) -> bool:
        if self._group.rank == rank and next(first, False):
            chosen = (*choice.shards, *(each.data for each in choice.pieces[rank : rank + 1]))
            for found in chosen:
                if found.pod == self._place.pod:
                    path = self._place.directory / found.name
                    content = bytearray(path.read_bytes())
                    content[-1] ^= 1
                    path.write_bytes(content)
        return load(self, choice)

    Restore.load = damaged  # type: ignore[method-assign]
