"""A DeepSpeed training with ZeRO 2, which resumes from its newest checkpoint at any number of ranks.

`deepspeed.initialize` reads its own configuration file. Of this project, only `universal.load` and `universal.save`,
and `rank.report`, are used.
"""

import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist

from dtj_trainer import rank, universal

CONFIG = Path(__file__).with_name("ds_config.json")


def main(steps: int = 200) -> None:
    deepspeed.init_distributed()
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=str(CONFIG))
    start = universal.load(engine)
    # The batch of all ranks is the same at any number of them; each rank takes its part.
    whole, world, mine = engine.train_batch_size(), dist.get_world_size(), dist.get_rank()
    for step in range(start + 1, steps + 1):
        x = torch.randn(whole, 8, generator=torch.Generator().manual_seed(step))
        x = x[mine * whole // world : (mine + 1) * whole // world].to(engine.device)
        loss = torch.nn.functional.mse_loss(engine(x), torch.tanh(x.sum(1, keepdim=True)))
        engine.backward(loss)
        engine.step()
        rank.report(step, total=steps, loss=loss.item())
        universal.save(engine, step, last=step == steps)
    if mine == 0:
        last = f"{loss.item():.6f}" if start < steps else "-"  # nothing was left to train
        print(f"final step={steps} resumed={start} world={world} loss={last}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
