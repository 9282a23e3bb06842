"""Steps of torch under Horovod, with the defaults of its DistributedOptimizer."""

from __future__ import annotations

import horovod.torch as hvd
import scaling_steps as scaling
import torch

from benchmarks.simulation.sizes import SAMPLES, WIDTH
from benchmarks.simulation.work import task


def main() -> None:
    """Times this rank."""
    scaling.pin(scaling.own_node())
    hvd.init()
    model, x = task().model, torch.ones(SAMPLES, WIDTH)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-4),
        model.named_parameters(),
        compression=hvd.Compression.fp16 if scaling.FP16 else hvd.Compression.none,
    )

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    buffers = {size: torch.zeros(size // 4) for size in scaling.SIZES}
    scaling.measure(hvd.rank(), step, lambda size: hvd.allreduce_(buffers[size], op=hvd.Sum, name=f"of {size}"))
    hvd.shutdown()


main()
