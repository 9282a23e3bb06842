"""An unmodified DDP script, as torchrun would start it: it imports nothing of ours, and saves nothing.

plain_ddp.py STEPS SECONDS_PER_STEP [by-hand]

`by-hand`: SGD without an optimizer of torch.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    steps, pause = int(sys.argv[1]), float(sys.argv[2])
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    if sys.argv[3:] == ["by-hand"]:
        train_by_hand(model, steps, pause)
    else:
        train(model, steps, pause)
    dist.destroy_process_group()


def train(model: torch.nn.Module, steps: int, pause: float) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        time.sleep(pause)


def train_by_hand(model: torch.nn.Module, steps: int, pause: float) -> None:
    for _ in range(steps):
        model.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
        time.sleep(pause)


if __name__ == "__main__":
    main()
