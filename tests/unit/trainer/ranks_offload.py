"""Functions for the ranks of test_offload, importable by the forked processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from dtj_trainer.components import activation_offload
from dtj_trainer.config import TrainerConfig
from dtj_trainer.strategies import DdpConfig, FsdpConfig, FsdpScratchConfig, Zero2Config
from dtj_trainer.strategies.cpu_offload import to_host
from dtj_trainer.strategies.scratch.fsdp_model import ScratchFsdpModel
from dtj_trainer.trainer import Trainer
from tests.unit.trainer.ranks_shared import trained


def of_shards(out: str) -> None:
    """Trains with each kind of offload; rank 0 writes the losses, and whether the gathered shard is the optimizer's."""
    results: dict[str, Any] = {}
    with Trainer(TrainerConfig(steps=1)) as trainer:
        for each in (False, True):
            for offload in (False, True, "all", "optimizer"):
                strategy = FsdpScratchConfig(cpu_offload=offload, reduce_every_micro_batch=each)  # type: ignore[arg-type]
                losses, _ = trained(trainer, strategy=strategy, steps=3)
                model = trainer.state.objects["model"]
                assert isinstance(model, ScratchFsdpModel)
                apart = [g._on_device is not None for g in model.flat_groups]
                results[f"{offload} {each}"] = [losses, apart]
        for offload in (False, True, "all"):
            losses, _ = trained(trainer, strategy=FsdpConfig(cpu_offload=offload), steps=3)  # type: ignore[arg-type]
            results[f"fsdp {offload}"] = [losses, []]
        if trainer.group.rank == 0:
            Path(out).write_text(json.dumps(results))


def of_activations(out: str) -> None:
    """Trains with activations that are moved as from a GPU; rank 0 writes losses, and how many tensors were moved."""
    results: dict[str, Any] = {}
    moved = 0

    def counted(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal moved
        moved += 1
        return to_host(tensor)

    activation_offload.to_host = counted  # type: ignore[attr-defined]
    activation_offload.DEVICES, activation_offload.MIN_BYTES = ("cpu",), 0  # type: ignore[assignment]
    kinds = {"ddp": DdpConfig(), "fsdp": FsdpConfig(), "fsdp_scratch": FsdpScratchConfig(), "zero2": Zero2Config()}
    with Trainer(TrainerConfig(steps=1)) as trainer:
        for name, strategy in kinds.items():
            for recompute in ("none", "block"):
                runs = []
                for offload in (False, True):
                    moved = 0
                    losses, _ = trained(
                        trainer, strategy=strategy, recompute=recompute, activation_offload=offload, steps=2
                    )
                    runs.append([losses, moved])
                results[f"{name} {recompute}"] = runs
        if trainer.group.rank == 0:
            Path(out).write_text(json.dumps(results))
