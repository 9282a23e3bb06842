"""A DeepSpeed training as people write it: nothing is caught, and of ours only the tests' marks are imported.

deepspeed_script.py STAGE FOLDER

Makes STEPS steps with this stage of ZeRO, saves by DeepSpeed's own means, and resumes from the checkpoint. Rank 0
writes the result to FOLDER/result.json.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import deepspeed
import marks
import torch
import torch.distributed as dist

STEPS, EVERY = 24, 4


def rows(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns this rank's two rows of the step."""
    x = torch.randn(2, 8, generator=torch.Generator().manual_seed(1000 * step + rank))
    return x, torch.tanh(x.sum(1, keepdim=True))


def train(stage: int, folder: Path) -> dict[str, Any]:
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    start = 0
    if (folder / "latest").exists():
        _, state = engine.load_checkpoint(str(folder))
        start = state["step"]
    found: dict[str, Any] = {"resumed": start, "world": world}
    marks.begin(rank, world)
    for step in range(start + 1, STEPS + 1):
        x, y = rows(step, rank)
        loss = torch.nn.functional.mse_loss(engine(x), y)
        engine.backward(loss)
        engine.step()
        if step % EVERY == 0:
            engine.save_checkpoint(str(folder), client_state={"step": step})
        mean = loss.detach() / world
        dist.all_reduce(mean)
        found.update(step=step, loss=float(mean))
        print(f"step {step} loss {float(mean):.6f}", flush=True)
        marks.after_step(step, rank)
        marks.maybe_die(step, rank)
    found["sum"] = sum(float(each.detach().double().sum()) for each in engine.module.parameters())
    return found


def main(stage: int, folder: Path) -> None:
    deepspeed.init_distributed(dist_backend="gloo")
    assert (dist.get_rank(), dist.get_world_size()) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    assert int(os.environ["LOCAL_SIZE"]) == 2
    found = train(stage, folder)
    if dist.get_rank() == 0:
        (folder / "result.json").write_text(json.dumps(found))
    dist.destroy_process_group()


main(int(sys.argv[1]), Path(sys.argv[2]))
