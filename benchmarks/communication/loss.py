"""The loss that a character GPT of 0.8 M parameters reaches with each method, at equal steps."""

from __future__ import annotations

import logging
import tempfile
from typing import Any

import torch

from dtj_trainer.communication import CommunicationConfig
from dtj_trainer.components.lr_schedule import ScheduleConfig
from dtj_trainer.components.optimizer import OptimizerConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.examples import gpt
from dtj_trainer.state import StateConfig
from dtj_trainer.trainer import Trainer

PLAIN = "none"
_LATER = {"warmup_steps": 60}
_EMBEDDINGS: dict[str, Any] = {"dense": ["token.*", "place.*"]}
_ANNEALED = {"warmup_steps": 60, "anneal_steps": 120}
ARMS: dict[str, dict[str, Any]] = {
    PLAIN: {"method": "none"},
    "bf16": {"method": "bf16"},
    "int8": {"method": "int8"},
    "powersgd, rank 8": {"method": "powersgd", "rank": 8, **_LATER},
    "powersgd, rank 8, dense embeddings": {"method": "powersgd", "rank": 8, **_LATER, **_EMBEDDINGS},
    "powersgd, rank 16, dense embeddings": {"method": "powersgd", "rank": 16, **_LATER, **_EMBEDDINGS},
    "powersgd, rank 1": {"method": "powersgd", "rank": 1, **_LATER},
    "topk, 1 %": {"method": "topk", **_LATER},
    "topk, 1 %, annealed, dense embeddings": {"method": "topk", **_ANNEALED, **_EMBEDDINGS},
    "topk, 10 %, annealed, dense embeddings": {"method": "topk", "ratio": 0.1, **_ANNEALED, **_EMBEDDINGS},
    "randomk, 1 %": {"method": "randomk", **_LATER},
    "onebit": {"method": "onebit", **_LATER},
}
"""All methods with a residual begin after 60 plain steps."""


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
                communication=CommunicationConfig(**ARMS[name]), state=StateConfig(log_every_steps=10_000),
            )  # fmt: skip
            result = trainer.fit(
                task.model, task.data, loss=task.loss, validation=task.validation, measure=task.measure
            )
            out[name].append(result.validation["loss"])
    trainer.close()
    return out
