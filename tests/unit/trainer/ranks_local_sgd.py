"""Functions for the ranks of test_local_sgd."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.components.optimizer import OptimizerConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.examples import gpt
from dtj_trainer.state import StateConfig
from dtj_trainer.strategies import DdpConfig, LocalSgd, LocalSgdConfig, StrategyConfig, make
from dtj_trainer.trainer import Trainer
from tests.unit.trainer.ranks_shared import fingerprint, tiny_gpt, tokens

WIDTH = 16


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))


class Loop:
    """Trains a small model by hand, and keeps each rank's weights after each step."""

    def __init__(self, group: Group, config: StrategyConfig, momentum: float = 0.0) -> None:
        self.group, self.module = group, net()
        self.strategy = make(config)
        self.model = self.strategy.wrap(self.module, group)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.1, momentum=momentum)
        self.history: list[torch.Tensor] = []

    def steps(self, count: int) -> None:
        for step in range(count):
            torch.manual_seed(100 * step + self.group.rank)
            with self.strategy.accumulate(self.model, last=True):
                torch.autograd.backward((self.model(torch.randn(8, WIDTH)) - 1).square().mean())
            self.strategy.finish(self.model)
            self.optimizer.step()
            if isinstance(self.strategy, LocalSgd):
                self.strategy.step_done(self.optimizer)
            self.strategy.zero_grad(self.model, self.optimizer)
            self.history.append(torch.cat([p.detach().reshape(-1) for p in self.module.parameters()]))

    def alike(self) -> list[bool]:
        """Returns after which steps all ranks had the same bits."""
        mine = [weights.numpy().tobytes() for weights in self.history]
        return [len(set(each)) == 1 for each in zip(*self.group.all_objects(mine), strict=True)]


def exchange(out: str) -> None:
    """Compares exchanges with DDP, and with outer steps that are computed from all ranks' weights."""
    group = Group.open(WorkerEnv.read())
    ddp, each = Loop(group, DdpConfig()), Loop(group, LocalSgdConfig(every=1))
    third = Loop(group, LocalSgdConfig(every=3), momentum=0.9)
    outer = Loop(group, LocalSgdConfig(every=2, outer_lr=0.7, outer_momentum=0.9))
    for loop in (ddp, each, third, outer):
        loop.steps(7)
    # Each rank's own two steps, then the outer step, by hand.
    anchor = torch.cat([p.detach().reshape(-1) for p in net().parameters()])
    momentum, expected = torch.zeros_like(anchor), net()
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
    for step in range(6):
        torch.manual_seed(100 * step + group.rank)
        optimizer.zero_grad()
        torch.autograd.backward((expected(torch.randn(8, WIDTH)) - 1).square().mean())
        optimizer.step()
        if step % 2:
            mine = torch.cat([p.detach().reshape(-1) for p in expected.parameters()])
            change = anchor - torch.stack(group.all_objects(mine)).mean(0)
            momentum = 0.9 * momentum + change
            anchor = anchor - 0.7 * (change + 0.9 * momentum)
            nn.utils.vector_to_parameters(anchor.clone(), expected.parameters())
    result = {
        "ddp": float((ddp.history[-1] - each.history[-1]).abs().max()),
        "outer": float((outer.history[5] - anchor).abs().max()),
        "moved": float((outer.history[5] - outer.history[0]).abs().max()),
        "alike": third.alike(),
    }
    if group.rank == 0:
        Path(out).write_text(json.dumps(result))
    group.close()


class Branches(nn.Module):
    """A layer that every rank uses, and one that only the last rank does."""

    def __init__(self, uses: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.uses = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), uses

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns as many numbers as it is given."""
        y: torch.Tensor = self.first(x)
        return self.second(y) if self.uses else y  # type: ignore[no-any-return]


def branch(out: str) -> None:
    """Trains with a layer that one rank leaves out, by optimizers that begin a state with the first gradient."""
    group = Group.open(WorkerEnv.read())
    results = {}
    for optimizer in (torch.optim.AdamW, torch.optim.SGD):
        loop = Loop(group, LocalSgdConfig(every=2))
        loop.module = Branches(uses=group.rank == group.world_size - 1)  # type: ignore[assignment]
        loop.model = loop.strategy.wrap(loop.module, group)
        options = {"momentum": 0.9} if optimizer is torch.optim.SGD else {}
        loop.optimizer = optimizer(loop.module.parameters(), lr=0.1, weight_decay=0.1, **options)  # type: ignore
        loop.steps(4)
        moments = [
            float(each.double().sum())
            for p in loop.module.parameters()
            for name, each in sorted(loop.optimizer.state[p].items())
            if name != "step"
        ]
        rates = [(each["lr"], each["weight_decay"]) for each in loop.optimizer.param_groups]
        results[optimizer.__name__] = {"alike": loop.alike(), "moments": group.all_objects(moments), "rates": rates}
    if group.rank == 0:
        Path(out).write_text(json.dumps(results))
    group.close()


def run(directory: str, options: dict[str, Any], until: int, out: str, validates: bool = False) -> None:
    """Trains a tiny GPT to step `until`. Each rank writes its weights' and its optimizer's fingerprint."""
    config = TrainerConfig(
        steps=until, global_batch_size=12, clip_norm=0.5, optimizer=OptimizerConfig(lr=1e-2),
        strategy=LocalSgdConfig(**options), validate_every_steps=4 if validates else None,
        state=StateConfig(log_every_steps=1, checkpoint=CheckpointConfig(directory=Path(directory), every_steps=5)),
    )  # fmt: skip
    seen: list[list[float]] = []

    def measure(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
        seen.append([float(p.detach().double().sum()) for p in model.parameters()])
        return {"loss": gpt.loss(model, batch)}

    with Trainer(config) as trainer:
        validation = {"validation": tokens(12), "measure": measure} if validates else {}
        trainer.fit(tiny_gpt(), tokens(60), loss=gpt.loss, **validation)  # type: ignore[arg-type]
        state = trainer.state.objects["optimizer"].state_dict()["state"]  # type: ignore[attr-defined]
        moments = [float(value.double().sum()) for each in state.values() for value in each.values()]
        outcome = {"weights": fingerprint(trainer.state), "moments": moments, "validated": seen}
        Path(f"{out}-{trainer.group.rank}").write_text(json.dumps(outcome))
