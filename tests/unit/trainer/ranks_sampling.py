"""Ranks of test_sampling and test_checkpoint_ranking: importable by the forked processes."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.checkpoint.folder import committed, read
from dtj_trainer.checkpoint.retention import RetentionConfig
from dtj_trainer.components.early_stopping import EarlyStopConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.data.order import Indices
from dtj_trainer.errors import ConfigError
from dtj_trainer.state import State, StateConfig
from dtj_trainer.trainer import Trainer
from tests.unit.trainer.nets import Dropped, Net
from tests.unit.trainer.ranks_checkpoint_contents import config, loss, measure, samples


class Augmented:
    """Samples that are nothing but what the three generators draw for them."""

    def __len__(self) -> int:
        return 24

    def get_batch(self, indices: Sequence[int] | Indices) -> torch.Tensor:
        n = len(indices)
        return torch.tensor([[random.random() for _ in range(n)], np.random.rand(n).tolist(), torch.rand(n).tolist()])


def masks(out: str) -> None:
    """Collects each rank's dropout masks and other draws, after all ranks were seeded and built
    alike.
    """
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    model = Dropped()
    built = [float(p.detach().sum()) for p in model.parameters()]
    others: list[list[float]] = []

    def drawing(wrapped: nn.Module, batch: Any) -> torch.Tensor:
        others.append([random.random(), float(np.random.rand())])
        return loss(wrapped, batch)

    with Trainer(config(None)) as trainer:
        trainer.fit(model, samples(), loss=drawing)
        outcome = trainer.group.all_objects({"built": built, "masks": model.drawn, "others": others})
        if trainer.group.rank == 0:
            Path(out).write_text(json.dumps(outcome))


class Weighed(nn.Module):
    """A model whose measure is its weight, so that a checkpoint has the metric that must rank it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum() * 0 + self.weight


def ranked(directory: str, out: str) -> None:
    """Saves at steps that are not logged or validated; writes checkpoint metrics and losses."""
    trainer = Trainer(config(None))
    outcome: dict[str, Any] = {}
    for metric in ("loss", "validation_weight"):
        folder = Path(directory, metric)
        best = RetentionConfig(keep_last=100, keep_best=1, metric=metric)
        trainer.config = config(folder, steps=12, every=3, log=5, validate_every_steps=4, retention=best)
        trainer.config.state.checkpoint.asynchronous = False  # no save is skipped for one that is being written
        losses = []

        def falling(model: nn.Module, batch: Any) -> torch.Tensor:
            value = model(batch[0])
            losses.append(float(value.detach()))  # noqa: B023 - called in this turn of the loop alone
            out: torch.Tensor = value
            return out

        trainer.fit(
            Weighed(),
            samples(),
            loss=falling,
            validation=samples(4),
            measure=lambda m, _: {"weight": -m.weight.detach()},
        )
        outcome[metric] = {path.name: read(path).manifest.metrics for path in committed(folder)}
        outcome[f"losses {metric}"] = losses
    Path(out).write_text(json.dumps(outcome))
    trainer.close()


def misspelt(directory: str, out: str) -> None:
    """Collects the errors of `fit` for missing arguments and metrics."""
    trainer = Trainer(config(None))
    validated = {"validation": samples(4), "measure": measure}
    wrong: dict[str, tuple[TrainerConfig, dict[str, Any]]] = {
        "metric": (
            config(Path(directory, "a"), retention=RetentionConfig(keep_best=1, metric="acuracy"), log=5),
            validated,
        ),
        "validation metric": (
            config(Path(directory, "b"), retention=RetentionConfig(keep_best=1, metric="validation_acuracy")),
            validated,
        ),
        "no validation": (
            config(Path(directory, "c"), retention=RetentionConfig(keep_best=1, metric="validation_loss")),
            {},
        ),
        "early stop": (config(None, early_stop=EarlyStopConfig(), validate_every_steps=1), {}),
        "no measure": (config(None), {"validation": samples(4)}),
        "loader": (config(None), {"data": DataLoader(samples(4))}),  # type: ignore[arg-type]
        "validation loader": (config(None), {"validation": DataLoader(samples(4)), "measure": measure}),  # type: ignore[arg-type]
    }  # fmt: skip
    outcome = {}
    for name, (changed, arguments) in wrong.items():
        trainer.config = changed
        try:
            trainer.fit(Net(), **{"data": samples(), "loss": loss} | arguments)
        except (ConfigError, TypeError) as e:
            outcome[name] = f"{type(e).__name__}: {e}"
    Path(out).write_text(json.dumps(outcome))
    trainer.close()


def misspelt_in_a_loop_of_ones_own(directory: str) -> None:
    """Trains with `keep_best` by a metric that no report has."""
    checkpoint = CheckpointConfig(
        directory=Path(directory),
        every_steps=2,
        retention=RetentionConfig(keep_best=1, metric="acuracy"),
        asynchronous=False,
    )
    state = State(StateConfig(checkpoint=checkpoint), model=nn.Linear(1, 1))
    for _ in state.steps(8):
        state.report(loss=0.5, accuracy=0.9)
    state.close()
