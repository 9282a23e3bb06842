"""A driver of Ray's TorchTrainer with four workers, which Ray restores from its newest checkpoint."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
import torch
from ray.train import (
    Checkpoint,
    CheckpointConfig,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    get_checkpoint,
    get_context,
    report,
)
from ray.train.torch import TorchTrainer, prepare_model


def train(config: dict[str, Any]) -> None:
    """Trains until the process is killed."""
    from journal import EVERY, PAUSE, Journal

    rank = get_context().get_world_rank()
    torch.manual_seed(0)
    model = prepare_model(torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    step = 0
    if checkpoint := get_checkpoint():
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder, "state.pt"), weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    journal = Journal(rank, get_context().get_world_size())
    while True:
        x = torch.randn(64, 32)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).tanh()).backward()
        optimizer.step()
        step += 1
        journal.step(step)
        if step % EVERY == 0:
            with tempfile.TemporaryDirectory() as folder:
                kept = None
                if rank == 0:
                    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save(state, Path(folder, "state.pt"))
                    kept = Checkpoint.from_directory(folder)
                report({"step": step}, checkpoint=kept)
        time.sleep(PAUSE)


def main() -> None:
    """Continues the run of this name, or begins it."""
    ray.init(log_to_driver=False)
    run = RunConfig(
        name="run",
        storage_path=os.environ["RECOVERY_FOLDER"] + "/checkpoints",
        failure_config=FailureConfig(max_failures=1),
        checkpoint_config=CheckpointConfig(num_to_keep=2),
    )
    TorchTrainer(train, train_loop_config={}, scaling_config=ScalingConfig(num_workers=4), run_config=run).fit()


main()
