"""The training of a chaos group with torch: DDP over gloo, three lines of the trainer library, its own samples.

Logs what plain_script.py logs, but no commits and no stale joins, so that the oracle checks none: the library has no
hook at a commit. Its checkpoints, lease and memory snapshots are what is tested.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dtj_trainer import State, StateConfig
from dtj_trainer.checkpoint.config import CheckpointConfig

SAMPLES = 5040
BATCH = 32
FOREVER = 1 << 40
SNAPSHOT_EVERY = 2
"""With `auto`, steps of 10 ms are worth so few snapshots that the checkpoints, every 20 steps, are always newer."""


def is_end(path: Path, step: int) -> bool:
    """Returns whether the file `finish` is there, with a step that was done; an empty one ends the training at once."""
    try:
        return step >= int(path.read_text() or 0)
    except OSError:
        return False


def main() -> None:
    """Trains to the step in the file `finish`, or to the step CHAOS_STEPS if that is given.

    On a cluster the job's folder on the checkpoint volume takes the place of CHAOS_FOLDER.
    """
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    attempt = int(os.environ["DTJ_ATTEMPT"])
    folder = Path(os.environ.get("CHAOS_FOLDER") or os.environ["DTJ_CHECKPOINT_DIR"])
    (folder / "log").mkdir(exist_ok=True)
    pause, end = float(os.environ["CHAOS_STEP_SECONDS"]), int(os.environ.get("CHAOS_STEPS", "0"))
    log = os.open(folder / "log" / f"{socket.gethostname()}-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(text: str) -> None:
        os.write(log, f"{text}\n".encode())

    torch.manual_seed(0)
    data = torch.randn(SAMPLES, 16)
    truth = (data @ torch.randn(16, 1)).tanh()
    layers = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1)
    )
    # Otherwise torch rebuilds its buckets after the first step, and more than two ranks add in
    # another order after a restart (docs/trainer.md).
    model = DistributedDataParallel(layers, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    checkpoint = CheckpointConfig(snapshot_every_steps=SNAPSHOT_EVERY)
    state = State(StateConfig(checkpoint=checkpoint), model=model, optimizer=optimizer)
    begun = False
    for step in state.steps(FOREVER):
        if not begun:
            begun = True
            write(f"begin {time.monotonic():.6f} {attempt} {rank} {world} {step}")
        epoch, place = divmod(step, SAMPLES // BATCH)
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))
        mine = order[place * BATCH : (place + 1) * BATCH][rank::world]
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(data[mine]), truth[mine])
        loss.backward()
        optimizer.step()
        # The file may appear while some ranks have looked already: all of them take rank 0's view.
        last = rank == 0 and (step + 1 == end or is_end(folder / "finish", step + 1))
        shared = torch.stack([loss.detach().double(), torch.tensor(float(last), dtype=torch.float64)])
        dist.all_reduce(shared)
        mean = (shared[0] / world).item()
        ids = ",".join(map(str, mine.tolist()))
        write(f"step {time.monotonic():.6f} {attempt} {step + 1} {mean.hex()} {ids}")
        state.report(loss=loss, samples=BATCH)
        if shared[1]:
            state.end()
        elif pause:
            time.sleep(pause)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
