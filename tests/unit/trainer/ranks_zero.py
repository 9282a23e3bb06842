"""Functions for the ranks of test_zero, importable by the forked processes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.communication import CommunicationConfig
from dtj_trainer.components.optimizer import OptimizerConfig
from dtj_trainer.components.precision import PrecisionConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.state import StateConfig
from dtj_trainer.strategies import DdpScratchConfig, FsdpScratchConfig, StrategyConfig, Zero1Config, Zero2Config
from dtj_trainer.strategies.scratch.zero_model import ZeroModel
from dtj_trainer.trainer import Trainer
from tests.unit.trainer.nets import Net
from tests.unit.trainer.ranks_gpu_ready import numbers, square_error
from tests.unit.trainer.ranks_shared import trained

KINDS: dict[str, StrategyConfig] = {
    "ddp_scratch": DdpScratchConfig(bucket_cap_mb=0.01),
    "zero1": Zero1Config(bucket_cap_mb=0.01),
    "zero2": Zero2Config(bucket_cap_mb=0.01),
}
IN_BF16 = CommunicationConfig(method="bf16")
RUNS: dict[str, dict[str, Any]] = {
    "whole share": {"micro_batch_size": None, "clip_norm": None},
    "accumulated": {"clip_norm": None},
    "sent in bf16": {"micro_batch_size": None, "clip_norm": None, "communication": IN_BF16},
    "bf16": {"micro_batch_size": None, "clip_norm": None, "precision": PrecisionConfig(dtype="bf16")},
    "fp16": {
        "micro_batch_size": None, "clip_norm": None, "precision": PrecisionConfig(dtype="fp16", initial_scale=2.0**10),
    },
    "overflow": {
        "micro_batch_size": None, "clip_norm": None, "precision": PrecisionConfig(dtype="fp16", initial_scale=2.0**60),
    },
}  # fmt: skip


def same_bits(out: str) -> None:
    """Trains in several ways by each strategy; rank 0 writes the losses, and digests of all ranks' whole weights."""
    results: dict[str, Any] = {}
    with Trainer(TrainerConfig(steps=1)) as trainer:
        for way, options in RUNS.items():
            for name, strategy in KINDS.items():
                losses, _ = trained(trainer, strategy=strategy, **options)
                results.setdefault(way, {})[name] = [losses, *trainer.group.all_objects(digest(trainer))]
        options = RUNS["sent in bf16"]
        results["fsdp_scratch"] = trained(trainer, strategy=FsdpScratchConfig(), **options)[0]
        if trainer.group.rank == 0:
            Path(out).write_text(json.dumps(results))


def digest(trainer: Trainer) -> str:
    """Returns a digest of the whole weights as this rank computes with them."""
    model: Any = trainer.state.objects["model"]
    module = model.inner[0] if isinstance(model, ZeroModel) else model.module
    content = b"".join(p.detach().numpy().tobytes() for p in module.parameters())
    return hashlib.sha256(content).hexdigest()


def traffic(out: str) -> None:
    """Trains two steps of three micro-batches each.

    Writes what is sent, and the elements of whole gradients, gradient shards and optimizer state of
    a rank between two micro-batches of the second step.
    """
    sent = {"reduce_scatter": 0, "all_gather": 0, "all_reduce": 0}

    def count(name: str, function: str) -> None:
        real = getattr(dist, function)

        def counted(*args: Any, **kwargs: Any) -> Any:
            sent[name] += args[0].numel() if name != "reduce_scatter" else args[1].numel()
            return real(*args, **kwargs)

        setattr(dist, function, counted)

    count("reduce_scatter", "reduce_scatter_single")
    count("all_gather", "all_gather_single")
    count("all_reduce", "all_reduce")
    results: dict[str, Any] = {}
    with Trainer(TrainerConfig(steps=1)) as trainer:
        kinds = {"zero1": Zero1Config(bucket_cap_mb=1e-3), "zero2": Zero2Config(bucket_cap_mb=1e-3)}
        for name, strategy in kinds.items():
            sent.update(dict.fromkeys(sent, 0))
            held = two_steps(trainer, strategy)
            model = trainer.state.objects["model"]
            assert isinstance(model, ZeroModel)
            padded = [bucket.padded for bucket in model.buckets]
            results[name] = {"sent": dict(sent), "held": held, "padded": padded}
        if trainer.group.rank == 0:
            Path(out).write_text(json.dumps(results))


def two_steps(trainer: Trainer, strategy: StrategyConfig) -> dict[str, int]:
    """Trains. Returns what this rank has before the last micro-batch."""
    held: dict[str, int] = {}
    calls = 0

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 6 and isinstance(model, ZeroModel):
            held.update(elements(model, trainer))
        return square_error(model, batch)

    torch.manual_seed(1)
    trainer.config = TrainerConfig(
        steps=2, global_batch_size=6, micro_batch_size=1, optimizer=OptimizerConfig(lr=1e-2),
        strategy=strategy, state=StateConfig(log_every_steps=100),
    )  # fmt: skip
    trainer.fit(Net(), numbers(16), loss=loss)
    return held


def elements(model: ZeroModel, trainer: Trainer) -> dict[str, int]:
    """Returns how many elements of gradients and optimizer state this rank has now."""
    optimizer: Any = trainer.state.objects["optimizer"]
    moments = [t for state in optimizer.state.values() for t in state.values() if t.dim()]
    return {
        "whole": sum(b.gradient.numel() for b in model.buckets if b.gradient is not None),
        "shards": sum(p.grad.numel() for p in model.parameters() if p.grad is not None),
        "moments": sum(t.numel() for t in moments),
    }


def ended(out: str, folder: str) -> None:
    """Resumes a run that has no step left, with another module; writes digests of all ranks, before and after."""
    results = []
    with Trainer(TrainerConfig(steps=1)) as trainer:
        for seed in (1, 2):
            torch.manual_seed(seed)
            trainer.config = TrainerConfig(
                steps=2, global_batch_size=4, strategy=Zero1Config(),
                state=StateConfig(checkpoint=CheckpointConfig(directory=Path(folder))),
            )  # fmt: skip
            trainer.fit(Net(), numbers(16), loss=square_error)
            results.append(trainer.group.all_objects(digest(trainer)))
        if trainer.group.rank == 0:
            Path(out).write_text(json.dumps(results))
