"""Handwritten digits and a small CNN under DistributedDataParallel.

torchrun --nproc-per-node 2 FILE [STEPS]
"""

import sys

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 400
BATCH = 64  # samples per step over all ranks
HELD_OUT = 360

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
digits = load_digits()
images, labels = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1), torch.tensor(digits.target)
steps_per_epoch = (len(images) - HELD_OUT) // BATCH

torch.manual_seed(0)
model = DistributedDataParallel(
    nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.4), nn.Linear(64 * 16, 10),
    )
)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

for step in range(STEPS):
    epoch, place = divmod(step, steps_per_epoch)
    order = torch.randperm(len(images) - HELD_OUT, generator=torch.Generator().manual_seed(epoch))
    mine = order[place * BATCH : (place + 1) * BATCH][rank::world]
    loss = cross_entropy(model(images[mine]), labels[mine])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()

model.eval()
with torch.no_grad():
    right = model(images[-HELD_OUT:]).argmax(1) == labels[-HELD_OUT:]
if rank == 0:
    print(f"final accuracy={right.float().mean().item():.3f}", flush=True)
dist.destroy_process_group()
