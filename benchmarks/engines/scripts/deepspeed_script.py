"""A DeepSpeed training with ZeRO 1 and DeepSpeed's own checkpoints."""

from __future__ import annotations

import os
import time

import deepspeed
import torch
from journal import EVERY, PAUSE, Journal, folder

CONFIG = {
    "train_micro_batch_size_per_gpu": 64,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
    "wall_clock_breakdown": False,
}


def main() -> None:
    """Trains until the process is killed."""
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)
    where, step = folder(), 0
    if os.path.exists(f"{where}/latest"):
        _, state = engine.load_checkpoint(where)
        step = state["step"]
    journal = Journal(torch.distributed.get_rank(), torch.distributed.get_world_size())
    while True:
        x = torch.randn(64, 32)
        engine.backward(torch.nn.functional.mse_loss(engine(x), x.sum(1, keepdim=True).tanh()))
        engine.step()
        step += 1
        journal.step(step)
        if step % EVERY == 0:
            engine.save_checkpoint(where, client_state={"step": step})
        time.sleep(PAUSE)


main()
