"""Drawn digits of 28x28 pixels, the shape of MNIST: an MLP 784-512-256-10 or a CNN.

dtj-train --config examples/trainer/mlp.yaml
torchrun --nproc-per-node 2 -m dtj_trainer.cli --config examples/trainer/mlp.yaml --arguments.model cnn
"""

from __future__ import annotations

from torch import nn

from dtj_trainer.errors import ConfigError
from dtj_trainer.examples.classify import loss, measure
from dtj_trainer.examples.images import Glyphs
from dtj_trainer.task import Task


def mlp() -> nn.Module:
    """Builds 784-512-256-10 with dropout."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 512), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(512, 256), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(256, 10),
    )  # fmt: skip


def cnn() -> nn.Module:
    """Builds two convolutions and two linear layers."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 49, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


MODELS = {"mlp": mlp, "cnn": cnn}


def task(model: str = "mlp", images: int = 20_000) -> Task:
    """Builds the task that dtj-train finds as `task: dtj_trainer.examples.glyphs:task`.

    Args:
        model: mlp or cnn.
        images: Images of an epoch; a twentieth as many others are validated.
    """
    if model not in MODELS:
        raise ConfigError(f"arguments.model={model!r}: write {' or '.join(sorted(MODELS))}")
    return Task(
        model=MODELS[model](),
        data=Glyphs(images),
        loss=loss,
        validation=Glyphs(max(1, images // 20), first=images),
        measure=measure,
        images_per_sample=1,
        flops_per_sample="auto",
    )
