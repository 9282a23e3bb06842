"""Functions for the ranks of test_communication: exactness of what is sent, and resumed runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.communication import CommunicationConfig, GradientQueue
from dtj_trainer.communication.config import WITH_FEEDBACK, LayerRule
from dtj_trainer.components.optimizer import OptimizerConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.errors import TrainerError
from dtj_trainer.examples import gpt
from dtj_trainer.state import State, StateConfig
from dtj_trainer.strategies import DdpConfig, DdpScratchConfig, make
from dtj_trainer.strategies.comm_hook import compress_gradients
from dtj_trainer.trainer import Trainer
from tests.unit.trainer.ranks_shared import fingerprint, tiny_gpt, tokens

WIDTH = 64
EXACT = [method for method in WITH_FEEDBACK if method != "auto"]
"""auto sends some steps in bf16, which rounds."""
BUCKETED = {"ddp": DdpConfig(bucket_cap_mb=0.05), "ddp_scratch": DdpScratchConfig(bucket_cap_mb=0.05)}
"""Buckets of three matrices, so that a step has several."""
OPTIONS: dict[str, Any] = {
    "rank": 2, "ratio": 0.05, "min_elements": 256, "warmup_steps": 0,
    "rules": [LayerRule(names="[3b]*.weight", rank=5)],
}  # fmt: skip


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6)))


def drop(queue: GradientQueue) -> None:
    """Forgets the residual, which a correct method must not."""
    for residual in queue.rank_tensors().values():
        residual.zero_()


class Flush:
    """Trains some steps, and adds up what arrived and what should have."""

    def __init__(self, group: Group, strategy: Any, method: str, after: Callable[[GradientQueue], None]) -> None:
        self.group, self.module = group, net()
        self.strategy = make(strategy, None, CommunicationConfig(method=method, **OPTIONS))
        self.model = self.strategy.wrap(self.module, group)
        self.queue: GradientQueue = self.strategy.queue  # type: ignore[attr-defined]
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.01)
        self.arrived = [torch.zeros_like(p) for p in self.module.parameters()]
        self.exact = [torch.zeros_like(p) for p in self.module.parameters()]
        self.after = after

    def steps(self, count: int) -> None:
        parameters = list(self.module.parameters())
        for step in range(count):
            torch.manual_seed(100 * step + self.group.rank)
            x = torch.randn(8, WIDTH)
            for total, own in zip(self.exact, torch.autograd.grad(self.loss(self.module(x)), parameters), strict=True):
                total += self.mean(own)
            with self.strategy.accumulate(self.model, last=True):
                torch.autograd.backward(self.loss(self.model(x)))
            self.strategy.finish(self.model)
            for total, parameter in zip(self.arrived, parameters, strict=True):
                assert parameter.grad is not None
                total += parameter.grad
            self.optimizer.step()
            self.strategy.zero_grad(self.model, self.optimizer)
            self.after(self.queue)

    @staticmethod
    def loss(output: torch.Tensor) -> torch.Tensor:
        return (output - 1).square().mean()

    def mean(self, tensor: torch.Tensor) -> torch.Tensor:
        mean = tensor.clone()
        dist.all_reduce(mean)
        return mean / self.group.world_size

    def gap(self) -> float:
        """Returns the largest difference between what should have arrived, and what arrived or waits."""
        residuals, gaps = self.queue.rank_tensors(), []
        names = [name for name, _ in self.module.named_parameters()]
        for name, arrived, exact in zip(names, self.arrived, self.exact, strict=True):
            waits = self.mean(residuals[name]) if name in residuals else torch.zeros_like(exact)
            gaps.append(float((arrived + waits - exact).abs().max() / exact.abs().max()))
        return max(gaps)

    def is_alike(self) -> bool:
        """Returns whether all ranks have the same weights, bit for bit."""
        mine = torch.cat([p.detach().reshape(-1) for p in self.module.parameters()]).numpy().tobytes()
        return len(set(self.group.all_objects(mine))) == 1


def flush(out: str, steps: int) -> None:
    """Takes some steps with each method and strategy, and 5 that drop the residual. Rank 0 writes the results."""
    group = Group.open(WorkerEnv.read())
    results = {}
    for name, strategy in BUCKETED.items():
        for method in EXACT:
            kept, dropped = (Flush(group, strategy, method, after) for after in (lambda _: None, drop))
            kept.steps(steps)
            dropped.steps(5)
            results[f"{name} {method}"] = {
                "gap": kept.gap(), "alike": kept.is_alike(), "dropped": dropped.gap(),
                "residuals": len(kept.queue.rank_tensors()),
            }  # fmt: skip
    if group.rank == 0:
        Path(out).write_text(json.dumps(results))
    group.close()


def broken_off(out: str) -> None:
    """Ends the backward of a step by an exception, and compares with a run without that step.

    torch's DDP can't be used after such a backward.
    """
    group = Group.open(WorkerEnv.read())
    plain, broken = (Flush(group, BUCKETED["ddp_scratch"], "topk", lambda _: None) for _ in range(2))
    for run in (plain, broken):
        run.steps(2)
    handle = broken.module[0].weight.register_hook(_fail)  # type: ignore[union-attr]
    try:
        torch.autograd.backward(broken.loss(broken.model(torch.ones(8, WIDTH))))
    except ZeroDivisionError:
        handle.remove()
        broken.strategy.zero_grad(broken.model, broken.optimizer)
    for run in (plain, broken):
        run.steps(2)
    pairs = zip(plain.module.parameters(), broken.module.parameters(), strict=True)
    if group.rank == 0:
        Path(out).write_text(json.dumps(all(torch.equal(a, b) for a, b in pairs)))
    group.close()


def _fail(_: torch.Tensor) -> None:
    raise ZeroDivisionError


def run(directory: str, strategy: str, options: dict[str, Any], until: int, out: str, bucket_mb: float = 0.01) -> None:
    """Trains a tiny GPT to step `until`. Each rank writes its weights' fingerprint and its residuals."""
    kind = {"ddp": DdpConfig, "ddp_scratch": DdpScratchConfig}[strategy]
    config = TrainerConfig(
        steps=until, global_batch_size=12, clip_norm=0.5, optimizer=OptimizerConfig(lr=1e-2),
        strategy=kind(bucket_cap_mb=bucket_mb), communication=CommunicationConfig(**options),
        state=StateConfig(log_every_steps=1, checkpoint=CheckpointConfig(directory=Path(directory), every_steps=100)),
    )  # fmt: skip
    loaded: dict[str, list[float]] = {}
    with Trainer(config) as trainer:
        trainer.on_start = lambda state: loaded.update(_sums(state.objects.get("communication")))
        trainer.fit(tiny_gpt(), tokens(60), loss=gpt.loss)
        queue = trainer.state.objects.get("communication")
        outcome = {
            "weights": fingerprint(trainer.state), "loaded": loaded, "saved": _sums(queue),
            "steps": queue.steps if isinstance(queue, GradientQueue) else None,
            "chosen": queue.state_dict()["chosen"] if isinstance(queue, GradientQueue) else None,
        }  # fmt: skip
        Path(f"{out}-{trainer.group.rank}").write_text(json.dumps(outcome))


def own_loop(directory: str, options: dict[str, Any], until: int, out: str) -> None:
    """Trains in a loop of the user's own under DDP to step `until`. Rank 0 writes the weights and the residuals."""
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(net(), bucket_cap_mb=0.05)
    queue = compress_gradients(model, CommunicationConfig(**options))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    checkpoint = CheckpointConfig(directory=Path(directory), every_steps=100)
    state = State(StateConfig(checkpoint=checkpoint), model=model, optimizer=optimizer, communication=queue)
    for step in state.steps(until):
        x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))
        optimizer.zero_grad()
        torch.autograd.backward(Flush.loss(model(x)))
        optimizer.step()
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps({"weights": fingerprint_of(model), "residuals": _sums(queue)}))
    state.close()
    dist.destroy_process_group()


def other_options(out: str) -> None:
    """Compresses with another rank of the factors on each rank, then under a group of its own."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    found = []
    for rank_of_factors, group in ((4 + rank, None), (4, dist.new_group(backend="gloo"))):
        model = nn.parallel.DistributedDataParallel(net(), process_group=group)
        try:
            compress_gradients(model, CommunicationConfig(method="powersgd", rank=rank_of_factors))
        except TrainerError as error:
            found.append(f"{type(error).__name__}: {error}")
    Path(f"{out}-{rank}").write_text(json.dumps(found))
    dist.destroy_process_group()


def fingerprint_of(model: nn.Module) -> list[float]:
    return [float(p.detach().double().sum()) for p in model.parameters()]


def _sums(queue: object) -> dict[str, list[float]]:
    """Returns the elements of each residual."""
    if not isinstance(queue, GradientQueue):
        return {}
    return {name: tensor.reshape(-1).tolist() for name, tensor in queue.rank_tensors().items()}
