"""The loss that a character GPT of 0.8 M parameters reaches with each method, at equal steps."""

from __future__ import annotations

import logging
import tempfile
from typing import Any

import torch

from dtj_trainer.communication import CommunicationConfig
from dtj_trainer.communication.config import Method
from dtj_trainer.components.lr_schedule import ScheduleConfig
from dtj_trainer.components.optimizer import OptimizerConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.examples import gpt
from dtj_trainer.state import StateConfig
from dtj_trainer.strategies import LocalSgdConfig
from dtj_trainer.trainer import Trainer

PLAIN, DEFAULT = "none", "powersgd, rank 12"


def _sent(method: Method, **options: Any) -> dict[str, Any]:
    """Returns an arm that compresses, by the defaults but for `options`."""
    return {"communication": CommunicationConfig(method=method, **options)}


_EARLY: dict[str, Any] = {"warmup_steps": 60, "dense_embeddings": False}
"""The defaults before they were chosen by the loss."""
ARMS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "bf16": _sent("bf16"),
    "int8": _sent("int8"),
    DEFAULT: _sent("powersgd"),
    "powersgd, rank 16": _sent("powersgd", rank=16),
    "powersgd, rank 8": _sent("powersgd", rank=8),
    "powersgd, rank 8, 60 plain steps, embeddings too": _sent("powersgd", rank=8, **_EARLY),
    "powersgd, rank 1": _sent("powersgd", rank=1),
    "topk, 1 %": _sent("topk"),
    "topk, 1 %, annealed": _sent("topk", anneal_steps=120),
    "topk, 10 %, annealed": _sent("topk", ratio=0.1, anneal_steps=120),
    "randomk, 1 %": _sent("randomk"),
    "onebit": _sent("onebit"),
    "local_sgd, every 8": {"strategy": LocalSgdConfig(every=8)},
    "local_sgd, every 32": {"strategy": LocalSgdConfig(every=32)},
    "local_sgd, every 32, DiLoCo": {"strategy": LocalSgdConfig(every=32, outer_lr=0.7, outer_momentum=0.9)},
}


def measure(steps: int, seeds: list[int], names: list[str]) -> dict[str, list[float]]:
    """Returns the validation loss after `steps` steps, by arm and seed.

    The seed draws the weights and the order of the samples. AdamW, 32 sequences of 128 characters a step, cosine.
    """
    logging.disable(logging.INFO)
    out: dict[str, list[float]] = {name: [] for name in names}
    trainer = Trainer(TrainerConfig(steps=1, cpu_threads=1))
    for seed in seeds:
        for name in names:
            torch.manual_seed(seed)
            task = gpt.task(data=f"{tempfile.gettempdir()}/dtj-stdlib")
            trainer.config = TrainerConfig(
                steps=steps, global_batch_size=32, seed=seed, clip_norm=1.0, cpu_threads=1,
                optimizer=OptimizerConfig(lr=1e-3, weight_decay=0.1, betas=(0.9, 0.95)),
                schedule=ScheduleConfig(kind="cosine", warmup_steps=20, floor=0.1),
                state=StateConfig(log_every_steps=10_000), **ARMS[name],
            )  # fmt: skip
            result = trainer.fit(
                task.model, task.data, loss=task.loss, validation=task.validation, measure=task.measure
            )
            out[name].append(result.validation["loss"])
    trainer.close()
    return out
