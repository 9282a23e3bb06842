"""A training script for torchrun: torch alone, without this project.

torchrun --nproc-per-node 2 train.py /tmp/plain
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main(
    folder: str, steps: int = 200, every: int = 20, pause: float = float(os.environ.get("STEP_SECONDS", "0"))
) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    truth = torch.randn(32, 1)
    path, step = os.path.join(folder, "checkpoint.pt"), 0
    if os.path.exists(path):
        saved = torch.load(path, map_location="cpu", weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    while step < steps:
        generator = torch.Generator().manual_seed(step * world + rank)
        x = torch.randn(64, 32, generator=generator)
        loss = torch.nn.functional.mse_loss(model(x), (x @ truth).tanh())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        time.sleep(pause)
        if step % every == 0:
            if rank == 0:
                os.makedirs(folder, exist_ok=True)
                torch.save(
                    {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step},
                    path + ".part",
                )
                os.replace(path + ".part", path)
                print(f"step={step} loss={loss.item():.4f} world={world}", flush=True)
            dist.barrier()
    if rank == 0:
        # A restart after the end has no loss to print.
        print(f"final step={step}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("DTJ_CHECKPOINT_DIR", "checkpoints"))
