"""Handwritten digits and a small CNN with the whole Trainer, which owns the loop.

torchrun --nproc-per-node 2 FILE [EPOCHS]
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from dtj_trainer import OptimizerConfig, ScheduleConfig, TensorData, Trainer, TrainerConfig, guarded

EPOCHS = float(sys.argv[1]) if len(sys.argv) > 1 else 18
HELD_OUT = 360

Batch = tuple[torch.Tensor, torch.Tensor]


def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    images, labels = batch
    return cross_entropy(model(images), labels)


def measure(model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
    images, labels = batch
    return {"accuracy": (model(images).argmax(1) == labels).float().mean()}


def main() -> int:
    digits = load_digits()
    images, labels = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1), torch.tensor(digits.target)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.4), nn.Linear(64 * 16, 10),
    )  # fmt: skip
    config = TrainerConfig(
        epochs=EPOCHS,
        global_batch_size=64,
        optimizer=OptimizerConfig(lr=1e-3),
        schedule=ScheduleConfig(kind="cosine", warmup_steps=10),
    )
    with Trainer(config) as trainer:
        result = trainer.fit(
            model,
            TensorData(images[:-HELD_OUT], labels[:-HELD_OUT]),
            loss=loss,
            validation=TensorData(images[-HELD_OUT:], labels[-HELD_OUT:]),
            measure=measure,
        )
        if trainer.group.rank == 0:
            print(f"final accuracy={result.validation['accuracy']:.3f}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(main))
