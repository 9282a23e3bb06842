"""Digits of scikit-learn, 8x8 pixels: an MLP or a small CNN, 95 % right or more on the test set.

    python -m dtj_trainer.examples.digits --model mlp --epochs 30                                  # alone
    torchrun --nproc-per-node 2 -m dtj_trainer.examples.digits --checkpoint-dir /tmp/digits       # two ranks, resumable

Each logged step prints a line, losses as exact repr. With a checkpoint folder, metrics.jsonl there
has the same as JSON.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from dtj_trainer.cli import guarded
from dtj_trainer.components.lr_schedule import ScheduleConfig
from dtj_trainer.components.optimizer import OptimizerConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.data.source import TensorData
from dtj_trainer.errors import ConfigError
from dtj_trainer.examples.flags import add_run_flags, run_example, state_config
from dtj_trainer.task import Task

TEST_SAMPLES = 360  # of 1797
SPLIT_SEED = 0


def load() -> tuple[TensorData, TensorData]:
    """Returns (train, test).

    Reads scikit-learn's file, because importing scikit-learn would take longer than an epoch.
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("the digits come with scikit-learn: pip install scikit-learn")
    path = Path(spec.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    with gzip.open(path, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    table = table[np.random.Generator(np.random.Philox(SPLIT_SEED)).permutation(len(table))]
    images, labels = torch.from_numpy(table[:, :-1] / 16.0), torch.from_numpy(table[:, -1].astype(np.int64))
    return TensorData(images[TEST_SAMPLES:], labels[TEST_SAMPLES:]), TensorData(
        images[:TEST_SAMPLES], labels[:TEST_SAMPLES]
    )


def mlp() -> nn.Module:
    """Builds 64-512-256-10.

    The dropout also shows whether a resumed run restores its random numbers.
    """
    return nn.Sequential(
        nn.Linear(64, 512), nn.ReLU(), nn.Dropout(0.4),
        nn.Linear(512, 256), nn.ReLU(), nn.Dropout(0.4),
        nn.Linear(256, 10),
    )  # fmt: skip


def cnn() -> nn.Module:
    """Builds two convolutions and a linear layer."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 16, 10),
    )  # fmt: skip


MODELS = {"mlp": mlp, "cnn": cnn}


def example_inputs() -> tuple[torch.Tensor]:
    """Returns the arguments of a model, for `dtj export --model dtj_trainer.examples.digits:mlp`."""
    return (load()[1].tensors[0][:4],)


def dynamic_shapes() -> tuple[dict[int, object]]:
    """Returns the dimensions of `example_inputs` that an exported program leaves open: that of the batch."""
    return ({0: torch.export.Dim("batch")},)


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Returns the mean cross entropy."""
    images, labels = batch
    return functional.cross_entropy(model(images), labels)


def measure(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """Returns loss and accuracy."""
    images, labels = batch
    logits = model(images)
    return {
        "loss": functional.cross_entropy(logits, labels),
        "accuracy": (logits.argmax(1) == labels).double().mean(),
    }


def task(model: str = "mlp") -> Task:
    """Builds the task that dtj-train finds as `task: dtj_trainer.examples.digits:task`."""
    if model not in MODELS:
        raise ConfigError(f"arguments.model={model!r}: write {' or '.join(sorted(MODELS))}")
    train, test = load()
    return Task(model=MODELS[model](), data=train, loss=loss, validation=test, measure=measure, images_per_sample=1)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    p = argparse.ArgumentParser(
        prog="python -m dtj_trainer.examples.digits", description=(__doc__ or "").splitlines()[0]
    )
    p.add_argument("--model", choices=sorted(MODELS), default="mlp")
    p.add_argument("--epochs", type=float, default=30)
    p.add_argument("--batch-size", type=int, default=64, help="samples per step over all ranks together")
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--seed", type=int, default=0)
    add_run_flags(p)
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Trains, prints `final step=… loss=… accuracy=…` on rank 0."""
    args = parser().parse_args(argv)
    torch.manual_seed(args.seed)
    config = TrainerConfig(
        epochs=args.epochs,
        global_batch_size=args.batch_size,
        seed=args.seed,
        cpu_threads=1,
        optimizer=OptimizerConfig(lr=args.lr),
        schedule=ScheduleConfig(kind="cosine", warmup_steps=10),
        state=state_config(args),
    )
    return run_example(task(args.model), config, args)


if __name__ == "__main__":
    raise SystemExit(guarded(main))
