"""Functions for the ranks of test_strategies: models of unusual shape, trained with and without a strategy."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from dtj_trainer.checkpoint.contents import CheckpointState, leaves
from dtj_trainer.components.optimizer import OptimizerConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.examples import gpt
from dtj_trainer.state import StateConfig
from dtj_trainer.strategies import (
    DdpConfig,
    DdpScratchConfig,
    FsdpConfig,
    FsdpScratchConfig,
    Zero1Config,
    Zero2Config,
    make,
)
from dtj_trainer.trainer import Trainer
from tests.unit.trainer.nets import NETS, WIDTH, Net, RecomputesTwice
from tests.unit.trainer.ranks import Records
from tests.unit.trainer.ranks_shared import STRATEGIES, tiny_gpt, tokens

SCRATCH = {
    "ddp_scratch": DdpScratchConfig(bucket_cap_mb=1e-4),
    "fsdp_scratch": FsdpScratchConfig(),
    "zero1": Zero1Config(bucket_cap_mb=1e-4),
    "zero2": Zero2Config(bucket_cap_mb=1e-4),
}
TORCH = {"ddp": DdpConfig(find_unused_parameters=True), "fsdp": FsdpConfig()}


class Alone:
    """No strategy: one process with the whole batch."""

    name = "alone"

    def wrap(self, model: nn.Module, group: Group) -> nn.Module:
        return model


def batches(steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    drawn = torch.Generator().manual_seed(5)
    for _ in range(steps):
        yield torch.randn(8, WIDTH, generator=drawn), torch.randn(8, 1, generator=drawn)


def trained(kind: type[Net], strategy: Any, group: Group, broken: bool = False) -> dict[str, Any]:
    """Returns losses of five steps with two micro-batches each, an evaluation after each, and the
    keys of a checkpoint.

    `broken`: in the third step a backward ends half-way in an exception, and the step is repeated.
    """
    torch.manual_seed(1)
    wrapped = strategy.wrap(kind(), group)
    alone = isinstance(strategy, Alone)
    wanted = [p for p in wrapped.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(wanted, lr=1e-2, weight_decay=0.1)
    losses, evaluated = [], []
    for step, (x, y) in enumerate(batches(5)):
        shares = [list(zip(x[r : r + 4].chunk(2), y[r : r + 4].chunk(2), strict=True)) for r in (0, 4)]
        halves = [tuple(map(torch.cat, zip(*half, strict=True))) for half in zip(*shares, strict=True)]
        if not alone:
            halves = shares[group.rank]
        for again in range(2 if broken and step == 2 else 1):
            total = torch.zeros(())
            try:
                for number, (a, b) in enumerate(halves):
                    last = number + 1 == len(halves)
                    if alone:
                        value = functional.mse_loss(wrapped(a), b) / 2
                        value.backward()
                    else:
                        with strategy.accumulate(wrapped, last=last):
                            value = functional.mse_loss(wrapped(a), b) / 2
                            if broken and step == 2 and not again and last:
                                break_off(wrapped)
                            value.backward()
                    total += value.detach()
            except Broken:
                strategy.zero_grad(wrapped, optimizer)
                continue
            if not alone:
                strategy.finish(wrapped)
            optimizer.step()
            if alone:
                optimizer.zero_grad()
            else:
                strategy.zero_grad(wrapped, optimizer)
        losses.append(float(total) if alone else float(group.gather(total).mean()))
        wrapped.eval()
        with torch.no_grad():
            evaluated.append(float(wrapped(x).mean()))
        wrapped.train()
    keys = {} if alone else dict(leaves(CheckpointState({"model": wrapped, "optimizer": optimizer}).sharded()))
    return {"losses": losses, "evaluated": evaluated, "keys": sorted(k for k in keys if k.startswith("model."))}


class Broken(RuntimeError):
    """The error that ends a backward here."""


def break_off(wrapped: nn.Module) -> None:
    """Makes the next backward fail once, when it comes to the first block's weight."""
    inner = wrapped.inner[0] if hasattr(wrapped, "inner") else wrapped.module  # type: ignore[index]
    parameter = inner.blocks[0].inner.weight  # type: ignore[union-attr, index]

    def fail(_: torch.Tensor) -> None:
        handle.remove()
        raise Broken

    handle = parameter.register_hook(fail)


def odd_models(out: str) -> None:
    """Trains every net with every strategy that supports it. Rank 0 writes the results."""
    group = Group.open(WorkerEnv.read())
    results: dict[str, dict[str, Any]] = {}
    for name, kind in NETS.items():
        runs = {"alone": Alone()} | {n: make(c) for n, c in (SCRATCH | TORCH).items() if n in supported(name)}
        results[name] = {n: trained(kind, strategy, group) for n, strategy in runs.items()}
    results["broken off"] = {"alone": trained(Net, Alone(), group)}
    results["broken off"] |= {n: trained(Net, make(c), group, broken=True) for n, c in SCRATCH.items()}
    if group.rank == 0:
        Path(out).write_text(json.dumps(results))
    group.close()


def twice_recomputed(out: str) -> None:
    """Trains RecomputesTwice by fsdp_scratch and without a strategy.

    Rank 0 writes the results, and ddp_scratch's error.
    """
    group = Group.open(WorkerEnv.read())
    results: dict[str, Any] = {
        "alone": trained(RecomputesTwice, Alone(), group),
        "fsdp_scratch": trained(RecomputesTwice, make(SCRATCH["fsdp_scratch"]), group),
    }
    try:
        trained(RecomputesTwice, make(SCRATCH["ddp_scratch"]), group)
    except RuntimeError as e:
        results["ddp_scratch"] = str(e)
    if group.rank == 0:
        Path(out).write_text(json.dumps(results))
    group.close()


def supported(net: str) -> set[str]:
    """Returns the strategies that support a net: torch's own reject some nets, ours support all."""
    refused = {
        "Shared": {"fsdp"},  # "shared parameters" across units
        "Dtypes": {"fsdp"},  # "uniform original parameter dtype"
        "Recomputes": {"ddp"},  # a reentrant checkpoint with find_unused_parameters
        "Forms": {"fsdp"},  # dataclasses are no pytrees
        "Strided": {"fsdp"},  # "does not support non-contiguous parameters"
    }
    return (SCRATCH.keys() | TORCH.keys()) - refused.get(net, set())


def grouped(out: str) -> None:
    """Saves two parameter groups with different options by fsdp_scratch, and loads them there and
    without a strategy."""
    group = Group.open(WorkerEnv.read())
    strategy = make(FsdpScratchConfig())

    def build() -> tuple[Any, torch.optim.Optimizer]:
        torch.manual_seed(1)
        wrapped = strategy.wrap(Net(), group)
        *blocks, root = wrapped.shards  # type: ignore[misc, union-attr]
        return wrapped, torch.optim.AdamW(
            [{"params": blocks, "lr": 0.5, "weight_decay": 0.0}, {"params": [root], "lr": 0.25}]
        )

    wrapped, optimizer = build()
    for x, y in batches(2):
        with strategy.accumulate(wrapped, last=True):
            functional.mse_loss(wrapped(x), y).backward()
        strategy.finish(wrapped)
        optimizer.step()
        strategy.zero_grad(wrapped, optimizer)
    tree = wrapped.portable_optimizer_state(optimizer)
    other, fresh = build()
    for options in fresh.param_groups:
        options["lr"] = 9.0
    other.load_portable_optimizer_state(fresh, tree)
    again = other.portable_optimizer_state(fresh)
    results = {
        "rates": {name: g["lr"] for g in tree["param_groups"] for name in g["params"]},
        "loaded": [[g["lr"], g["weight_decay"]] for g in fresh.param_groups],
        "same": all(torch.equal(a, dict(leaves(again))[k]) for k, a in leaves(tree) if isinstance(a, torch.Tensor)),
    }
    if group.rank == 0:
        Path(out).write_text(json.dumps(results))
    group.close()


def unheld(out: str) -> None:
    """Writes the norms of the same batch, three times, with an optimizer that has some parameters and a rate of 0."""
    group = Group.open(WorkerEnv.read())
    (x, y), *_ = batches(1)
    results = {}
    for name, config in (SCRATCH | {"ddp": DdpConfig(), "fsdp": FsdpConfig()}).items():
        strategy = make(config)
        wrapped = strategy.wrap(Net(), group)
        optimizer = torch.optim.SGD(list(wrapped.parameters())[:1], lr=0.0)
        results[name] = []
        for _ in range(3):
            with strategy.accumulate(wrapped, last=True):
                torch.autograd.backward(functional.mse_loss(wrapped(x), y))
            strategy.finish(wrapped)
            results[name].append(float(strategy.clip(wrapped, 1e9)))
            optimizer.step()
            strategy.zero_grad(wrapped, optimizer)
    if group.rank == 0:
        Path(out).write_text(json.dumps(results))
    group.close()


# Seconds, far more than a busy machine adds to a step of a few milliseconds.
SLOW = 1.0


def slow_rank(out: str) -> None:
    """Trains each strategy with a rank 1 that is slow in the forward of steps 5 to 8.

    Rank 0 writes the record of those.
    """
    trainer = Trainer(TrainerConfig(steps=1))
    results = {}
    for name, strategy in STRATEGIES.items():
        if name not in ("ddp", "ddp_scratch", "fsdp", "hsdp", "fsdp_scratch"):
            continue
        calls = 0

        def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            nonlocal calls
            calls += 1
            if os.environ["RANK"] == "1" and calls > 4:
                time.sleep(SLOW)  # not a wait: the load that this rank has
            return gpt.loss(model, batch)

        trainer.config = TrainerConfig(
            steps=8,
            global_batch_size=4,
            clip_norm=1.0,
            optimizer=OptimizerConfig(),
            strategy=strategy,
            state=StateConfig(log_every_steps=4),
        )
        sink = Records()
        trainer.fit(tiny_gpt(), tokens(), loss=loss, sinks=[sink])
        results[name] = sink.records[-1] if sink.records else None
    if trainer.group.rank == 0:
        Path(out).write_text(json.dumps(results))
    trainer.close()
