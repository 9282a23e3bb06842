"""A Horovod training inside of hvd.elastic.run, as Horovod documents it for horovodrun.

The state is committed in memory every EVERY steps, and rank 0 saves it then, because with an agent that starts all
ranks again nothing else is left.
"""

from __future__ import annotations

import os
import time
from typing import Any

import horovod.torch as hvd
import torch
from journal import EVERY, PAUSE, Journal, folder

FILE = folder() + "/checkpoint.pt"


def train(state: Any) -> None:
    """Trains until the process is killed or Horovod re-forms the group."""
    journal = Journal(hvd.rank(), hvd.size())
    while True:
        x = torch.randn(64, 32)
        state.optimizer.zero_grad()
        torch.nn.functional.mse_loss(state.model(x), x.sum(1, keepdim=True).tanh()).backward()
        state.optimizer.step()
        state.step += 1
        journal.step(state.step)
        if state.step % EVERY == 0:
            if hvd.rank() == 0:
                weights, moments = state.model.state_dict(), state.optimizer.state_dict()
                torch.save({"step": state.step, "model": weights, "optimizer": moments}, FILE + ".part")
                os.replace(FILE + ".part", FILE)
            state.commit()
        time.sleep(PAUSE)


def main() -> None:
    """Continues from the checkpoint. Rank 0's state becomes that of all ranks when the training begins."""
    hvd.init()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
    step = 0
    if os.path.exists(FILE):
        saved = torch.load(FILE, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    hvd.elastic.run(train)(hvd.elastic.TorchState(model=model, optimizer=optimizer, step=step))


main()
