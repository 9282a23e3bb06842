"""Flags that the built-in examples share."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.cli import run_task
from dtj_trainer.config import TrainerConfig
from dtj_trainer.snapshots.memory import Every
from dtj_trainer.state import StateConfig
from dtj_trainer.task import Task


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """Adds what is logged, what is saved, and how long a step takes at least."""
    parser.add_argument("--log-every", type=int, default=10, metavar="STEPS")
    parser.add_argument(
        "--checkpoint-dir", type=Path, help="default: DTJ_CHECKPOINT_DIR; without either nothing is saved"
    )
    parser.add_argument(
        "--checkpoint-every", type=int, metavar="STEPS", help="default: DTJ_CHECKPOINT_EVERY_STEPS, or 50"
    )
    parser.add_argument(
        "--snapshot-every", type=int, metavar="STEPS", help="in memory; default: what 2 %% of the time allows; 0: none"
    )
    parser.add_argument(
        "--step-time-ms", type=float, default=0, help="sleep in every step, to watch a run or to break it at leisure"
    )


def state_config(args: argparse.Namespace) -> StateConfig:
    """Returns the config of logs and checkpoints."""
    snapshots: Every = "auto" if args.snapshot_every is None else args.snapshot_every
    checkpoint = CheckpointConfig(
        directory=args.checkpoint_dir, every_steps=args.checkpoint_every, snapshot_every_steps=snapshots
    )
    return StateConfig(log_every_steps=args.log_every, checkpoint=checkpoint)


def run_example(task: Task, config: TrainerConfig, args: argparse.Namespace) -> int:
    """Trains, and prints `final step=… loss=… accuracy=…` on rank 0."""
    return run_task(task, config, after_step=lambda _: time.sleep(args.step_time_ms / 1000))
