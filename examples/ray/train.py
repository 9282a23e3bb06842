"""A TorchTrainer of Ray on two pods, which Ray resumes from its newest checkpoint: storage and name stay the same."""

import os
import sys
import tempfile
from pathlib import Path

import ray
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig, get_checkpoint, get_context, report
from ray.train.torch import TorchTrainer, prepare_model

from dtj_trainer import rank


def train(config):
    torch.manual_seed(7)
    model = prepare_model(torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    start = 0
    if checkpoint := get_checkpoint():
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder, "state.pt"), weights_only=True)
        model.load_state_dict(saved["model"])
        start = saved["step"]
    for step in range(start + 1, config["steps"] + 1):
        x = torch.randn(32, 8, generator=torch.Generator().manual_seed(1000 * step + get_context().get_world_rank()))
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), torch.tanh(x.sum(1, keepdim=True)))
        loss.backward()
        optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            kept = None
            if step % 20 == 0 and get_context().get_world_rank() == 0:
                torch.save({"model": model.state_dict(), "step": step}, Path(folder, "state.pt"))
                kept = Checkpoint.from_directory(folder)
            report({"step": step, "loss": loss.item(), "resumed": start}, checkpoint=kept)
        rank.report(step, total=config["steps"], loss=loss.item())  # kubectl get dtj, dtj run


def main(steps: int = 200) -> None:
    ray.init()
    storage = os.path.abspath(os.environ.get("DTJ_CHECKPOINT_DIR") or "checkpoints")
    trainer = TorchTrainer(
        train,
        train_loop_config={"steps": steps},
        scaling_config=ScalingConfig(num_workers=4),
        run_config=RunConfig(name="run", storage_path=storage),
    )
    found = trainer.fit().metrics
    print(f"final step={found['step']} resumed={found['resumed']}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
