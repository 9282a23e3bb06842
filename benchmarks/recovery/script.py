"""A DDP script for torchrun: torch alone, with its own checkpoint. All arms run it unchanged.

Each process appends to a log of its own, with CLOCK_MONOTONIC, which all processes of a machine share:
`begin TIME ATTEMPT RANK WORLD PID` once a process enters the training, `step TIME STEP` after each optimizer step.
One write(2) of 40 bytes is all that the log costs a step.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

EVERY = 10


def task() -> tuple[torch.nn.Module, torch.Tensor]:
    """Returns the model and the function that the model learns, the same on every rank."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    return model, torch.randn(32, 1)


def loss(model: torch.nn.Module, truth: torch.Tensor, step: int, world: int, rank: int) -> torch.Tensor:
    """Returns the loss of the rank's samples of a step."""
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(step * world + rank))
    return torch.nn.functional.mse_loss(model(x), (x @ truth).tanh())


def main(**rendezvous: Any) -> None:
    """Trains until the process is killed. torchrun's environment is the rendezvous unless one is given."""
    folder, pause = os.environ["RECOVERY_FOLDER"], float(os.environ["RECOVERY_STEP_SECONDS"])
    dist.init_process_group("gloo", **rendezvous)
    rank, world = dist.get_rank(), dist.get_world_size()
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    log = os.open(f"{folder}/log/{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(log, f"begin {time.monotonic():.6f} {attempt} {rank} {world} {os.getpid()}\n".encode())
    module, truth = task()
    model = DistributedDataParallel(module)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    path, step = f"{folder}/checkpoint.pt", 0
    if os.path.exists(path):
        saved = torch.load(path, map_location="cpu", weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    while True:
        optimizer.zero_grad()
        loss(model, truth, step, world, rank).backward()
        optimizer.step()
        step += 1
        os.write(log, f"step {time.monotonic():.6f} {step}\n".encode())
        if step % EVERY == 0 and rank == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, path + ".part")
            os.replace(path + ".part", path)
        time.sleep(pause)


if __name__ == "__main__":
    main()
