"""A Horovod training of torch as people write it: nothing is caught, and of ours only the tests' marks are imported.

horovod_script.py {torch|elastic} FOLDER

Makes STEPS steps with a DistributedOptimizer, saves on rank 0, and resumes from the checkpoint. `elastic` does so
inside of hvd.elastic.run, with a TorchState that is committed after each step. Rank 0 writes the result to
FOLDER/result.json.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import marks
import torch

STEPS, EVERY = 24, 4


def rows(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns this rank's two rows of the step."""
    x = torch.randn(2, 8, generator=torch.Generator().manual_seed(1000 * step + hvd.rank()))
    return x, torch.tanh(x.sum(1, keepdim=True))


def save(file: Path, step: int, model: Any, optimizer: Any) -> None:
    if hvd.rank() == 0:
        part = file.with_suffix(".part")
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, part)
        part.replace(file)


def train(kind: str, folder: Path) -> dict[str, Any]:
    torch.manual_seed(7 + hvd.rank())  # the broadcast below makes the ranks equal
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    # Before the checkpoint is loaded, because the wrapper takes over no state of the optimizer.
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=hvd.Compression.fp16)
    file, start = folder / "checkpoint.pt", 0
    if file.exists():
        saved = torch.load(file, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["step"]
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    found: dict[str, Any] = {"resumed": start, "world": hvd.size()}
    marks.begin(hvd.rank(), hvd.size())

    def loop(state: Any) -> None:
        while state.step < STEPS:
            x, y = rows(state.step)
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            state.step += 1
            if state.step % EVERY == 0:
                save(file, state.step, model, optimizer)
            if kind == "elastic":
                state.commit()
            mean = float(hvd.allreduce(loss.detach(), name="loss"))
            found.update(step=state.step, loss=mean)
            print(f"step {state.step} loss {mean:.6f}", flush=True)
            marks.after_step(state.step, hvd.rank())
            marks.maybe_die(state.step, hvd.rank())

    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=start)
    if kind == "elastic":
        hvd.elastic.run(loop)(state)
    else:
        loop(state)
    found["sum"] = sum(float(each.double().sum()) for each in model.state_dict().values())
    return found


def main(kind: str, folder: Path) -> None:
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    assert (hvd.local_rank(), hvd.local_size()) == (int(os.environ["LOCAL_RANK"]), 2)
    # A second init in the same attempt meets at the same store.
    hvd.shutdown()
    hvd.init()
    found = train(kind, folder)
    if hvd.rank() == 0:
        (folder / "result.json").write_text(json.dumps(found))
    hvd.shutdown()


main(sys.argv[1], Path(sys.argv[2]))
