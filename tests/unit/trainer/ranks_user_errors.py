"""Ranks of test_user_errors: mistakes that end with one clear line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dtj_trainer.cli import guarded
from dtj_trainer.communication import CommunicationConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.data.loader import LoaderConfig
from dtj_trainer.strategies import DdpScratchConfig, FsdpConfig, FsdpScratchConfig
from dtj_trainer.trainer import Trainer
from tests.unit.trainer.nets import WIDTH, Net
from tests.unit.trainer.nets_common import Detector
from tests.unit.trainer.ranks import Records
from tests.unit.trainer.ranks_gpu_ready import numbers, square_error


class Adafactor(torch.optim.SGD):
    """Named as one that computes with whole tensors."""


class Ragged:
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(WIDTH + index % 2), torch.zeros(1)


class Wider(Net):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Linear(WIDTH, width), nn.Linear(width, 1))


def mistake(name: str) -> None:
    """Makes the named mistake, and ends as dtj-train would."""

    def fit() -> int:
        with Trainer(TrainerConfig(steps=1)) as trainer:
            options: dict[str, Any] = {"steps": 2, "global_batch_size": 4}
            model, data, loss, optimizer = Net(), numbers(), square_error, None
            match name:
                case "shape":
                    options["strategy"] = DdpScratchConfig()
                    model = Wider(4 + trainer.group.rank)
                case "loss of samples":
                    loss = lambda model, batch: (model(batch[0]) - batch[1]).square().squeeze(1)  # noqa: E731
                case "loss without gradient":
                    loss = lambda model, batch: square_error(model, batch).detach()  # noqa: E731
                case "ragged":
                    data = Ragged()
                case "ragged in a worker":
                    data = Ragged()
                    options["data"] = LoaderConfig(workers=1)
                case "optimizer":
                    options["strategy"] = FsdpScratchConfig()
                    optimizer = lambda model: Adafactor(model.parameters(), lr=0.1)  # noqa: E731
                case "recompute":
                    model, options["recompute"] = nn.Linear(WIDTH, 1), "block"
                case "blocks":
                    options |= {"blocks": "Blok", "strategy": FsdpConfig()}
                case "meta":
                    model, options["strategy"] = nn.Linear(WIDTH, 1, device="meta"), DdpScratchConfig()
                case "nothing to train":
                    model.requires_grad_(False)
                case "scalar":
                    model.register_parameter("scale", nn.Parameter(torch.tensor(1.0)))
                    options["strategy"] = FsdpConfig()
                case "pattern":
                    options["communication"] = CommunicationConfig(method="topk", dense=["haed.*"])
                case "meta everywhere":
                    model, options["strategy"] = nn.Linear(WIDTH, 1, device="meta"), FsdpConfig()
            trainer.config = TrainerConfig(**options)
            trainer.fit(model, data, loss=loss, optimizer=optimizer)
        return 0

    sys.exit(guarded(fit))


def modes(out: str) -> None:
    """Records which modules are in training at each step, with validations in between."""
    outcome: dict[str, list[list[bool]]] = {}
    with Trainer(TrainerConfig(steps=1)) as trainer:
        for name, strategy in {
            "fsdp": FsdpConfig(),
            "ddp_scratch": DdpScratchConfig(),
            "fsdp_scratch": FsdpScratchConfig(),
        }.items():
            for whole in (True, False):  # and a model that was given in eval() as a whole
                model = Detector()
                if not whole:
                    model.eval()
                seen: list[list[bool]] = []

                def loss(tried: nn.Module, batch: Any, model: Any = model, seen: Any = seen) -> torch.Tensor:
                    seen.append([model.backbone[1].training, model.head[1].training])
                    return tried(torch.ones(2, 8)).square().mean()

                trainer.config = TrainerConfig(steps=3, global_batch_size=4, validate_every_steps=1, strategy=strategy)
                measure = lambda tried, _: {"loss": tried(torch.ones(2, 8)).mean()}  # noqa: E731
                trainer.fit(model, numbers(), loss=loss, validation=numbers(), measure=measure, sinks=[Records()])
                outcome[f"{name} {'in part' if whole else 'whole'}"] = seen
        if trainer.group.rank == 0:
            Path(out).write_text(json.dumps(outcome))
