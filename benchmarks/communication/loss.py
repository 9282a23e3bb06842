"""The loss that a character GPT of 0.8 M parameters reaches with each method, at equal steps."""

from __future__ import annotations

import logging
import tempfile
from typing import Any

import torch

from dtj_trainer.communication import CommunicationConfig
from dtj_trainer.communication.config import WITH_FEEDBACK, Method
from dtj_trainer.components.lr_schedule import ScheduleConfig
from dtj_trainer.components.optimizer import OptimizerConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.examples import gpt
from dtj_trainer.state import StateConfig
from dtj_trainer.strategies import LocalSgdConfig
from dtj_trainer.trainer import Trainer

PLAIN = "none"


def _sent(method: Method, **options: Any) -> dict[str, Any]:
    """Returns an arm that compresses; methods with a residual begin after 60 plain steps."""
    later = {"warmup_steps": 60} if method in WITH_FEEDBACK and method != "int8" else {}
    return {"communication": CommunicationConfig(method=method, **(later | options))}


_EMBEDDINGS: dict[str, Any] = {"dense": ["token.*", "place.*"]}
"""The head shares its weight with the embedding of the tokens."""
_ANNEALED = _EMBEDDINGS | {"anneal_steps": 120}
ARMS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "bf16": _sent("bf16"),
    "int8": _sent("int8"),
    "powersgd, rank 8": _sent("powersgd"),
    "powersgd, rank 8, dense embeddings": _sent("powersgd", **_EMBEDDINGS),
    "powersgd, rank 12, dense embeddings": _sent("powersgd", rank=12, **_EMBEDDINGS),
    "powersgd, rank 16, dense embeddings": _sent("powersgd", rank=16, **_EMBEDDINGS),
    "powersgd, rank 1": _sent("powersgd", rank=1),
    "topk, 1 %": _sent("topk"),
    "topk, 1 %, annealed, dense embeddings": _sent("topk", **_ANNEALED),
    "topk, 10 %, annealed, dense embeddings": _sent("topk", ratio=0.1, **_ANNEALED),
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
