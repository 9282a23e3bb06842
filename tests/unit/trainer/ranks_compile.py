"""Functions for the ranks of test_compile."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional

from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.components.activation_checkpoint import Recompute
from dtj_trainer.components.compile import Compile, compile_forward
from dtj_trainer.components.optimizer import OptimizerConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.data.source import TensorData
from dtj_trainer.examples import digits, gpt
from dtj_trainer.examples.gpt import Gpt, GptConfig
from dtj_trainer.state import StateConfig
from dtj_trainer.strategies import DdpConfig, StrategyConfig
from dtj_trainer.trainer import Trainer
from tests.unit.trainer.nets import WIDTH, Net
from tests.unit.trainer.ranks_shared import STRATEGIES, Keep, tokens

MODES: dict[str, tuple[StrategyConfig, Recompute]] = {
    "ddp": (STRATEGIES["ddp"], "none"),
    "ddp_scratch": (STRATEGIES["ddp_scratch"], "none"),
    "fsdp": (STRATEGIES["fsdp"], "none"),
    "hsdp": (STRATEGIES["hsdp"], "none"),
    "fsdp_scratch": (STRATEGIES["fsdp_scratch"], "none"),
    "zero2": (STRATEGIES["zero2"], "none"),
    "ddp, recompute": (STRATEGIES["ddp"], "selective"),
    "fsdp, recompute": (STRATEGIES["fsdp"], "block"),
    "fsdp_scratch, recompute": (STRATEGIES["fsdp_scratch"], "block"),
}


def numbers() -> tuple[torch.Tensor, torch.Tensor]:
    """Returns samples and their targets."""
    x = torch.randn(48, WIDTH, generator=torch.Generator().manual_seed(3))
    return x, x.square().mean(1, keepdim=True)


def squares(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Returns the mean squared error."""
    return functional.mse_loss(model(batch[0]), batch[1])


def run(
    trainer: Trainer,
    directory: Path,
    steps: int,
    compiled: Compile,
    strategy: StrategyConfig,
    mode: Recompute = "none",
) -> dict[str, Any]:
    """Trains a small net from the folder's newest checkpoint to `steps`.

    Returns losses, graphs and graph breaks.
    """
    torch._dynamo.reset()
    counters.clear()
    trainer.config = TrainerConfig(
        steps=steps, global_batch_size=12, micro_batch_size=3, clip_norm=0.5, optimizer=OptimizerConfig(lr=1e-2),
        strategy=strategy, recompute=mode, compile=compiled,
        state=StateConfig(log_every_steps=1, checkpoint=CheckpointConfig(directory=directory, every_steps=100)),
    )  # fmt: skip
    torch.manual_seed(steps)  # a checkpoint that is not read is seen
    if not any(directory.glob("step-*")):
        torch.manual_seed(7)
    losses: list[float] = []
    trainer.fit(Net(), TensorData(*numbers()), loss=squares, sinks=[Keep(losses)])
    graphs, breaks = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
    return {"losses": losses, "graphs": graphs, "breaks": breaks}


def strategies_compiled(folder: Path) -> None:
    """Trains two steps compiled by each strategy, then two that are not, by ddp; beside four that are not."""
    with Trainer(TrainerConfig(steps=1)) as trainer:
        results = {"whole": run(trainer, folder / "whole", 4, False, DdpConfig())}
        for name, (strategy, mode) in MODES.items():
            results[name] = run(trainer, folder / name, 2, "aot_eager", strategy, mode)
            results[name]["losses"] += run(trainer, folder / name, 4, False, DdpConfig())["losses"]
        if trainer.group.rank == 0:
            (folder / "out.json").write_text(json.dumps(results))


def kept(folder: Path) -> None:
    """Writes the bytes that a forward keeps for backward, beside the weights, by mode of recompute."""
    results: dict[str, int] = {}

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        seen = {p.untyped_storage().data_ptr(): 0 for p in model.parameters()}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            seen.setdefault(tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            # All that is kept is alive until here, so no address occurs twice.
            value = gpt.loss(model, batch)
        results[mode] = sum(seen.values())
        return value

    with Trainer(TrainerConfig(steps=1)) as trainer:
        for mode in get_args(Recompute):
            torch._dynamo.reset()
            trainer.config = TrainerConfig(steps=1, global_batch_size=4, recompute=mode, compile="aot_eager")
            trainer.fit(Gpt(GptConfig(block=64, layers=3, heads=4, width=64)), tokens(block=64), loss=loss)
    (folder / "out.json").write_text(json.dumps(results))


def inductor(folder: Path) -> None:
    """Writes the losses of the digits' CNN, a plain Sequential, compiled and not, and the graphs of the run."""
    results: dict[str, Any] = {}
    for compiled in (False, True):
        counters.clear()
        torch.manual_seed(0)
        task = digits.task(model="cnn")
        state = StateConfig(log_every_steps=1)
        losses: list[float] = []
        with Trainer(TrainerConfig(steps=4, shuffle=False, compile=compiled, state=state)) as trainer:
            counters.clear()
            trainer.fit(task.model, task.data, loss=task.loss, sinks=[Keep(losses)])
        results[str(compiled)] = {"losses": losses, "graphs": counters["stats"]["unique_graphs"]}
    (folder / "out.json").write_text(json.dumps(results))


class Numbered(nn.Module):
    """A block whose forward reads its number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.linear = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x) * (1 + self.number)
        return out


class Stack(nn.Module):
    """A model with more such blocks than torch makes graphs for one function."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Numbered(i) for i in range(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def numbered() -> int:
    """Returns the graphs of a Stack."""
    counters.clear()
    model = Stack()
    compile_forward(model, "aot_eager", DdpConfig())
    model(torch.ones(1, 2))
    return int(counters["stats"]["unique_graphs"])


def parts(folder: Path) -> None:
    """Writes the modules whose forward is compiled, by model and strategy, and the outputs of a copied model."""
    models: dict[str, Callable[[], nn.Module]] = {
        "blocks": lambda: Gpt(GptConfig(layers=2)),
        "sequential": digits.mlp,
        "neither": lambda: nn.Linear(1, 1),
    }
    results: dict[str, Any] = {}
    for kind, make in models.items():
        for name in ("ddp", "ddp_scratch", "fsdp", "hsdp", "fsdp_scratch"):
            model = make()
            compile_forward(model, "aot_eager", STRATEGIES[name])
            results[f"{kind}, {name}"] = [n for n, m in model.named_modules() if "forward" in vars(m)]
    copied = copy.deepcopy(model)
    results["copy"] = [
        float(copied.weight.detach().fill_(2.0) + copied.bias.detach().fill_(1.0)),
        float(copied(torch.ones(1))),
    ]
    results["numbered"] = numbered()
    (folder / "out.json").write_text(json.dumps(results))
