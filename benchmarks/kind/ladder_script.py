"""The training of all arms of the ladder: torch's DDP over gloo and torch.save, with nothing of this project.

Logs what tests/chaos/records.py reads. The number of an attempt is the time at which its rank 0 began, so that the
script needs no number from whatever restarts it.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

EVERY = 50
"""Steps between two checkpoints."""


def main() -> None:
    """Trains until it is ended."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    folder = Path(os.environ.get("LADDER_FOLDER") or os.environ["DTJ_CHECKPOINT_DIR"])
    (folder / "log").mkdir(parents=True, exist_ok=True)
    log = os.open(folder / "log" / f"{socket.gethostname()}-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    checkpoint, pause = folder / "checkpoint.pt", float(os.environ["LADDER_STEP_SECONDS"])

    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    begun = torch.tensor([int(time.monotonic() * 1e6), 0])
    if rank == 0 and checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        layers.load_state_dict(saved["model"])
        begun[1] = saved["step"]
    # Weights come from rank 0 when DDP wraps them, and plain SGD has no state.
    dist.broadcast(begun, 0)
    attempt, step = begun.tolist()
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    os.write(log, f"begin {time.monotonic():.6f} {attempt} {rank} {world} {step}\n".encode())
    while True:
        batch = torch.randn(32, 16, generator=torch.Generator().manual_seed(step * world + rank))
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        step += 1
        os.write(log, f"step {time.monotonic():.6f} {attempt} {step} {loss.item().hex()} -\n".encode())
        if rank == 0 and step % EVERY == 0:
            aside = checkpoint.with_suffix(".part")
            torch.save({"model": layers.state_dict(), "step": step}, aside)
            aside.rename(checkpoint)
        time.sleep(pause)


if __name__ == "__main__":
    main()
