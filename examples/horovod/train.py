"""A Horovod training of torch on several processes, which resumes from its newest checkpoint.

`hvd.init()` needs no horovodrun. Of this project, only the three calls of `rank` are used.
"""

import sys

import horovod.torch as hvd
import torch

from dtj_trainer import rank


def main(steps: int = 200) -> None:
    hvd.init()
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    # Before the checkpoint is loaded, because the wrapper takes over no state of the optimizer.
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=hvd.Compression.fp16)
    start = 0
    if found := rank.newest():
        start, folder = found
        saved = torch.load(folder / "state.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    def write(folder):
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "state.pt")

    for step in range(start + 1, steps + 1):
        x = torch.randn(32, 8, generator=torch.Generator().manual_seed(1000 * step + hvd.rank()))
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), torch.tanh(x.sum(1, keepdim=True)))
        loss.backward()
        optimizer.step()
        rank.report(step, total=steps, loss=loss.item())
        rank.save(step, write, last=step == steps)
    if hvd.rank() == 0:
        print(f"final step={steps} resumed={start} world={hvd.size()}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
