"""A Ray training as people write it: nothing is caught, and of ours only the tests' marks are imported.

ray_script.py {train|elastic} FOLDER

A TorchTrainer of four workers, or of two to four, makes STEPS steps, reports a checkpoint each EVERY steps, and is
restored from the newest one by Ray itself, because storage and name stay the same. At step KILL_AT of the first entry
into the training of the first attempt, worker 0 kills what KILL in the environment names: 0 is the driver, 1 the
process of rank 1, which starts the Ray node of the second pod, and `raylet` that node's raylet.
FAILURES: the failures that Ray itself may answer with new workers.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import marks
import ray
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig, get_checkpoint, get_context, report
from ray.train.torch import TorchTrainer, prepare_model

STEPS, EVERY, WORKERS = 24, 4, 4


def rows(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns this worker's two rows of the step."""
    rank = get_context().get_world_rank()
    x = torch.randn(2, 8, generator=torch.Generator().manual_seed(1000 * step + rank))
    return x, torch.tanh(x.sum(1, keepdim=True))


def processes(*parts: str) -> list[int]:
    """Returns the processes of this machine with all these parts in their command lines."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if all(part in line for part in parts):
            found.append(int(folder.name))
    return found


def maybe_die(step: int, resumed: int, config: dict[str, Any]) -> None:
    if config["attempt"] != "1" or step != marks.KILL_AT or get_context().get_world_rank() != 0:
        return
    if config["kill"] == "0":
        os.kill(config["driver"], signal.SIGKILL)
    if config["kill"] == "1":
        found = processes("dtj_agent.ray_node", " node ", " ".join(config["address"].split(":")))
        (node,) = [pid for pid in found if os.getsid(pid) == pid]
        os.kill(node, signal.SIGKILL)
    if config["kill"] == "raylet" and not resumed:
        # Ray replaces a loopback address with that of the machine.
        nodes = processes("/raylet/raylet ", ":" + config["address"].rpartition(":")[2] + " ")
        (node,) = [pid for pid in nodes if pid not in processes("/raylet/raylet ", " --head")]
        os.kill(node, signal.SIGKILL)


def train(config: dict[str, Any]) -> None:
    torch.manual_seed(7)
    layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    # Otherwise torch rebuilds its buckets after the first step, and adds in another order after a restart.
    model = prepare_model(layers, parallel_strategy_kwargs={"find_unused_parameters": True})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = 0
    if checkpoint := get_checkpoint():
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder, "state.pt"), weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    resumed, rank, world = step, get_context().get_world_rank(), get_context().get_world_size()
    marks.begin(rank, world)
    while step < STEPS:
        x, y = rows(step)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        step += 1
        mean = loss.detach() / world
        torch.distributed.all_reduce(mean)
        total = sum(float(each.double().sum()) for each in model.state_dict().values())
        metrics = {"step": step, "loss": float(mean), "sum": total, "resumed": resumed, "world": world}
        with tempfile.TemporaryDirectory() as folder:
            kept = None
            if step % EVERY == 0 and get_context().get_world_rank() == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, Path(folder, "state.pt"))
                kept = Checkpoint.from_directory(folder)
            report(metrics, checkpoint=kept)
        marks.after_step(step, rank)
        maybe_die(step, resumed, config)


def main(kind: str, folder: Path) -> None:
    ray.init(log_to_driver=False)
    if kind == "elastic":  # it would begin with the nodes that have joined so far
        end = time.monotonic() + marks.GO_SECONDS
        while ray.cluster_resources().get("CPU", 0) < WORKERS and time.monotonic() < end:
            time.sleep(0.2)
    config = {
        "attempt": os.environ["DTJ_ATTEMPT"], "kill": os.environ.get("KILL"), "driver": os.getpid(),
        "address": os.environ["RAY_ADDRESS"],
    }  # fmt: skip
    trainer = TorchTrainer(
        train,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=(2, WORKERS) if kind == "elastic" else WORKERS),
        run_config=RunConfig(
            name="run",
            storage_path=str(folder),
            failure_config=FailureConfig(max_failures=int(os.environ.get("FAILURES", "0"))),
        ),
    )
    found = trainer.fit().metrics
    assert found is not None
    kept = {name: found[name] for name in ("step", "loss", "sum", "resumed", "world")}
    (folder / "result.json").write_text(json.dumps(kept))


main(sys.argv[1], Path(sys.argv[2]))
