"""Ranks of test_batch_equivalence: steps of a tiny GPT, cut in different ways."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils._python_dispatch import TorchDispatchMode

from dtj_trainer.checkpoint.contents import CheckpointState, leaves
from dtj_trainer.components.optimizer import OptimizerConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.distributed.flat_shard import FlatShard
from dtj_trainer.examples import gpt
from dtj_trainer.state import StateConfig
from dtj_trainer.strategies import HsdpConfig
from dtj_trainer.strategies.scratch.fsdp import FsdpScratch
from dtj_trainer.strategies.scratch.fsdp_model import ScratchFsdpModel
from dtj_trainer.telemetry.record import Record
from dtj_trainer.trainer import Trainer
from tests.unit.trainer.ranks_shared import STRATEGIES, tiny_gpt, tokens, whole

NORM = 0.05
# (samples, micro-batch). 11 samples are 5 and 6 on 2 ranks, and 2, 3, 3, 3 on 4: by threes
# micro-batches differ in size, by ones some ranks need one more of them than others.
CUTS = [(11, 3), (11, 1)]
PLAIN = ("ddp", "ddp_scratch", "fsdp", "hsdp", "fsdp_scratch")


def sgd(samples: int, micro: int, strategy: Any) -> TrainerConfig:
    return TrainerConfig(
        steps=2, global_batch_size=samples, micro_batch_size=micro, clip_norm=NORM, shuffle=False, strategy=strategy,
        optimizer=OptimizerConfig(name="sgd", lr=1.0, momentum=0.0, weight_decay=0.0),
        state=StateConfig(log_every_steps=1),
    )  # fmt: skip


def single_process(samples: int) -> tuple[list[float], list[float], dict[str, Any]]:
    """Takes two steps of plain torch on whole batches.

    Returns (losses, unclipped norms, weights).
    """
    model, (inputs, targets) = tiny_gpt(), tokens().tensors
    losses, norms = [], []
    for step in range(2):
        own = slice(step * samples, (step + 1) * samples)
        value = gpt.loss(model, (inputs[own], targets[own]))
        model.zero_grad()
        torch.autograd.backward(value)
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), NORM)))
        with torch.no_grad():
            for p in model.parameters():
                p -= p.grad  # type: ignore[arg-type]
        losses.append(float(value.detach()))
    return losses, norms, {k: v.detach().tolist() for k, v in model.state_dict().items()}


def elsewhere(rank: int) -> gpt.Gpt:
    """Builds the model with other weights than rank 0, as a script that seeds by rank does."""
    model = tiny_gpt()
    with torch.no_grad():
        for p in model.parameters():
            p += rank
    return model


class Rows:
    """A sink that keeps losses and norms."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.norms: list[float] = []

    def write(self, record: Record) -> None:
        assert record.loss is not None
        self.losses.append(record.loss)
        self.norms.append(record.metrics["grad_norm"])

    def close(self) -> None:
        pass


class Reads(TorchDispatchMode):
    """Counts numbers read from tensors, and copies to the host: on a GPU each waits for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        self.count += func is torch.ops.aten._to_copy.default and (kwargs or {}).get("device") == torch.device("cpu")
        return func(*args, **(kwargs or {}))


def reads(out: str) -> None:
    """Counts the numbers that each step reads from tensors; the tenth step is logged."""
    outcome = {}
    with Trainer(TrainerConfig(steps=1)) as trainer:
        for name in PLAIN:
            strategy = HsdpConfig(shard_size=2) if name == "hsdp" else STRATEGIES[name]
            trainer.config = replace(sgd(12, 3, strategy), steps=10, state=StateConfig(log_every_steps=10))
            by_step: list[int] = []
            with Reads() as counter:
                trainer.fit(
                    tiny_gpt(), tokens(), loss=gpt.loss, after_step=lambda _, c=counter, b=by_step: b.append(c.count)
                )  # type: ignore[misc]
            outcome[name] = [after - before for before, after in pairwise(by_step)]
        if trainer.group.rank == 0:
            Path(out).write_text(json.dumps(outcome))


def largest_difference(mine: dict[str, Any], theirs: dict[str, Any]) -> float:
    assert mine.keys() == theirs.keys()
    return max(float((torch.tensor(mine[k]) - torch.tensor(theirs[k])).abs().max()) for k in mine)


def exact(out: str) -> None:
    """Trains with every strategy and cut; rank 0 writes the differences to the single process."""
    trainer = Trainer(TrainerConfig(steps=1))
    outcome = []
    for samples, micro in CUTS:
        losses, norms, weights = single_process(samples)
        for name in PLAIN:
            strategy = HsdpConfig(shard_size=2) if name == "hsdp" else STRATEGIES[name]
            trainer.config, rows = sgd(samples, micro, strategy), Rows()
            trainer.fit(elsewhere(trainer.group.rank), tokens(), loss=gpt.loss, sinks=[rows])
            live = CheckpointState({"model": trainer.state.objects["model"]}).sharded()["model"]
            weights_of_all = {k: whole(v).tolist() for k, v in live.items()}
            if trainer.group.rank == 0:
                outcome.append({
                    "name": f"{name}: {samples} samples by {micro}",
                    "losses": [abs(a - b) for a, b in zip(rows.losses, losses, strict=True)],
                    "norms": [abs(a - b) for a, b in zip(rows.norms, norms, strict=True)],
                    "weights": [largest_difference(weights_of_all, weights)],
                    "clipped": min(norms) > NORM,
                })  # fmt: skip
    if trainer.group.rank == 0:
        Path(out).write_text(json.dumps(outcome))
    trainer.close()


class HalfUsed(nn.Module):
    """Its second block is in no step."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first: torch.Tensor = self.blocks[0](x)
        return first


def saved_early(out: str) -> None:
    """Reads the optimizer's state around a save, while a block has had no gradient."""
    with Trainer(TrainerConfig(steps=1)) as trainer:
        strategy = FsdpScratch()
        model = strategy.wrap(HalfUsed(), trainer.group)
        assert isinstance(model, ScratchFsdpModel)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(3):
            with strategy.accumulate(model, last=True):
                torch.autograd.backward(model(torch.ones(2, 4)).square().sum())
            strategy.finish(model)
            optimizer.step()
            strategy.zero_grad(model, optimizer)

        def moments() -> list[Any]:
            return [
                [v.tolist() for v in optimizer.state[p].values()] for p in model.parameters() if p in optimizer.state
            ]

        before = moments()
        with CommDebugMode() as counted:
            tree = dict(
                leaves({"model": model.portable_state_dict(), "optimizer": model.portable_optimizer_state(optimizer)})
            )
        live = [*model.parameters(), *(v for p in model.parameters() for v in optimizer.state[p].values())]
        mine = {t.untyped_storage().data_ptr() for t in live}
        copied = [
            key
            for key, leaf in tree.items()
            if isinstance(leaf, FlatShard) and leaf.flat.untyped_storage().data_ptr() not in mine
        ]
        parts = sum(isinstance(leaf, FlatShard) for leaf in tree.values())
        if trainer.group.rank == 0:
            outcome = {
                "before": before,
                "after": moments(),
                "sent": counted.get_total_counts(),
                "copied": copied,
                "parts": parts,
            }
            Path(out).write_text(json.dumps(outcome))
