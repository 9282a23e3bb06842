"""A plain torchrun script with the pauses of real ones, none of them announced. Nothing of ours is imported.

PAUSES_PLAN is JSON: the pauses as [at, kind, seconds]. Rank 0 decides when a pause is due.
Each process appends to a log of its own: `begin TIME ATTEMPT RANK WORLD PID`, `step TIME STEP`, and
`pause TIME KIND SECONDS` at the end of a pause.
"""

from __future__ import annotations

import json
import os
import random
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

CHUNK = 1 << 16


def step_seconds(number: int) -> float:
    """Returns the pause of a step, as plan.py describes it."""
    if number % 400 == 399:
        return 8.0
    return 1.0 if number % 50 == 49 else random.Random(number).uniform(0.02, 0.06)


def work(model: torch.nn.Module, seconds: float) -> None:
    """Uses the processor without a step, as a compiler and a validation do."""
    until = time.monotonic() + seconds
    with torch.no_grad():
        while time.monotonic() < until:
            model(torch.randn(256, 64))


def write(folder: str, seconds: float) -> None:
    """Writes a file as a slow disk takes it: few bytes at a time, each of them synced."""
    until = time.monotonic() + seconds
    with open(f"{folder}/checkpoint.part", "wb") as out:
        while time.monotonic() < until:
            out.write(os.urandom(CHUNK))
            out.flush()
            os.fsync(out.fileno())
            time.sleep(0.5)


def main() -> None:
    """Trains until the process is killed."""
    pauses, folder = json.loads(os.environ["PAUSES_PLAN"]), os.environ["RECOVERY_FOLDER"]
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    log = open(f"{folder}/log/{os.getpid()}", "a", buffering=1)  # noqa: SIM115
    print(f"begin {time.monotonic():.6f} {attempt} {rank} {world} {os.getpid()}", file=log)
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64))
    model = DistributedDataParallel(module)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step, first, due = 0, 0.0, torch.zeros(1)
    while True:
        if rank == 0:
            since = time.monotonic() - first if first else 0.0
            due[0] = bool(pauses) and since >= pauses[0][0]
        dist.broadcast(due, 0)
        if due[0]:
            _, kind, seconds = pauses.pop(0)
            if kind != "write":
                work(module, seconds)
            elif rank == 0:
                write(folder, seconds)
            dist.barrier()
            print(f"pause {time.monotonic():.6f} {kind} {seconds}", file=log)
        optimizer.zero_grad()
        model(torch.randn(32, 64)).square().mean().backward()
        optimizer.step()
        step += 1
        first = first or time.monotonic()
        print(f"step {time.monotonic():.6f} {step}", file=log)
        time.sleep(step_seconds(step))


if __name__ == "__main__":
    main()
