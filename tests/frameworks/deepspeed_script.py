"""Trainings with DeepSpeed at each stage of ZeRO: nothing of ours is imported but `universal`, where it is asked for.

deepspeed_script.py KIND FOLDER [own|universal]

KIND is a key of ZERO. With `own` the script saves every EVERY steps and resumes by DeepSpeed's own means. With
`universal` the checkpoints are of dtj_trainer.universal. Rank 0 writes its result to FOLDER/result.json, and its
losses to FOLDER/losses.jsonl. STEPS: the last step. KILL: the rank that kills itself at step KILL_AT of the first
attempt.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist

STEPS, EVERY, KILL_AT = int(os.environ.get("STEPS") or 24), 4, 15
BATCH = 8
"""Samples of a step over all ranks."""
ON_CPU = {"device": "cpu"}
# Without the threshold, tensors as small as these would not be partitioned.
ZERO3: dict[str, Any] = {"stage": 3, "stage3_param_persistence_threshold": 0}
ZERO: dict[str, dict[str, Any]] = {
    "zero1": {"stage": 1},
    "zero2": {"stage": 2},
    "zero3": ZERO3,
    "zero2-offload": {"stage": 2, "offload_optimizer": ON_CPU},
    "zero2-cpuadam": {"stage": 2, "offload_optimizer": ON_CPU},
    "zero3-offload": {**ZERO3, "offload_optimizer": ON_CPU, "offload_param": ON_CPU},
}


def make_engine(kind: str, world: int) -> Any:
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(8, 33), torch.nn.Tanh(), torch.nn.Linear(33, 1))
    config = {
        "train_batch_size": BATCH,
        "train_micro_batch_size_per_gpu": BATCH // world,
        "gradient_clipping": 1.0,
        "zero_optimization": ZERO[kind],
    }
    if kind.endswith("cpuadam"):
        config["optimizer"] = {"type": "AdamW", "params": {"lr": 0.01}}
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        assert type(engine.basic_optimizer).__name__ == "DeepSpeedCPUAdam"
        return engine
    # DeepSpeed's own optimizer for offloading is compiled on the machine.
    config["zero_force_ds_cpu_optimizer"] = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return engine


def share(step: int, rank: int, world: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns this rank's share of the step's samples, which are the same at any number of ranks."""
    x = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(step))
    mine = x[rank * BATCH // world : (rank + 1) * BATCH // world]
    return mine, torch.tanh(mine.sum(1, keepdim=True))


def whole_sum(engine: Any) -> float:
    parameters = list(engine.module.parameters())
    with deepspeed.zero.GatheredParameters(parameters, enabled=engine.zero_optimization_stage() == 3):
        return sum(parameter.detach().double().sum().item() for parameter in parameters)


def train(kind: str, folder: Path, universal: bool) -> None:
    deepspeed.init_distributed(dist_backend="gloo")
    rank, world, attempt = dist.get_rank(), dist.get_world_size(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    engine = make_engine(kind, world)
    start = 0
    if universal:
        from dtj_trainer import universal as ours

        start = ours.load(engine)
    elif (folder / "latest").exists():
        _, state = engine.load_checkpoint(str(folder))
        start = state["step"]
    loss = float("nan")
    for step in range(start + 1, STEPS + 1):
        x, y = share(step, rank, world)
        value = torch.nn.functional.mse_loss(engine(x), y)
        engine.backward(value)
        engine.step()
        mean = value.detach() / world
        dist.all_reduce(mean)
        loss = mean.item()
        if rank == 0:
            with (folder / "losses.jsonl").open("a") as file:
                print(json.dumps({"step": step, "loss": loss, "world": world}), file=file)
        if universal:
            ours.save(engine, step, last=step == STEPS)
        elif step % EVERY == 0:
            engine.save_checkpoint(str(folder), client_state={"step": step})
        if os.environ.get("KILL") == str(rank) and attempt == 0 and step == KILL_AT:
            os.kill(os.getpid(), signal.SIGKILL)
    result = {"sum": whole_sum(engine), "loss": loss, "step": STEPS, "resumed": start, "world": world}
    if rank == 0:
        (folder / "result.json").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    where = Path(sys.argv[2])
    where.mkdir(parents=True, exist_ok=True)
    train(sys.argv[1], where, sys.argv[3:] == ["universal"])
