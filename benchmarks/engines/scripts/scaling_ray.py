"""Steps of torch under Ray's TorchTrainer, a worker on each node before a node has two."""

from __future__ import annotations

import os
from typing import Any

import ray
import scaling_steps as scaling
from ray.train import RunConfig, ScalingConfig, get_context
from ray.train.torch import TorchTrainer, prepare_model


def train(config: dict[str, Any]) -> None:
    """Times a worker."""
    import torch
    import torch.distributed as dist

    from benchmarks.simulation.sizes import BUCKET_MB, SAMPLES, WIDTH
    from benchmarks.simulation.work import task

    context = get_context()
    scaling.pin(context.get_node_rank())
    torch.set_num_threads(1)
    model = prepare_model(task().model, parallel_strategy_kwargs={"bucket_cap_mb": BUCKET_MB})
    optimizer, x = torch.optim.SGD(model.parameters(), lr=1e-4), torch.ones(SAMPLES, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    buffers = {size: torch.zeros(size // 4) for size in scaling.SIZES}
    scaling.measure(context.get_world_rank(), step, lambda size: dist.all_reduce(buffers[size]))


def main() -> None:
    """Starts the workers."""
    ray.init(log_to_driver=False)
    workers = ScalingConfig(num_workers=scaling.RANKS, placement_strategy="SPREAD")
    run = RunConfig(name="run", storage_path=os.environ["RECOVERY_FOLDER"] + "/ray")
    TorchTrainer(train, train_loop_config={}, scaling_config=workers, run_config=run).fit()


main()
