"""A loop that rank 0 tracks in MLflow or in W&B. A restarted attempt continues the run of the attempt before it.

torchrun --nproc-per-node 2 train.py [STEPS]     # with MLFLOW_TRACKING_URI, or with WANDB_API_KEY
"""

import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from dtj_trainer import State
from dtj_trainer.examples import digits

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 200
BATCH = 64  # samples per step over all ranks
JOB = os.environ.get("DTJ_JOB_UID", "")  # the same in all attempts of a job
Log = Callable[[int, float], object]


def mlflow_log() -> Log:
    """Continues the job's run in MLflow, or starts it. The tag finds the run, because MLflow chooses its id."""
    import mlflow

    mlflow.set_experiment("digits")
    found = mlflow.search_runs(filter_string=f"tags.`dtj.uid` = '{JOB}'", output_format="list") if JOB else []
    if found:
        mlflow.start_run(run_id=found[0].info.run_id)
    else:
        mlflow.start_run(run_name=os.environ.get("DTJ_JOB"), tags={"dtj.uid": JOB})
        mlflow.log_params({"steps": STEPS, "batch": BATCH})
    return lambda step, loss: mlflow.log_metric("loss", loss, step=step)


def wandb_log() -> Log:
    """Continues the job's run in W&B, or starts it: by WANDB_RUN_ID and WANDB_RESUME of the job file.

    If W&B gives no answer, the attempt logs to WANDB_DIR, because a training must not fail with its tracking.
    """
    import wandb

    settings = {"project": "digits", "config": {"steps": STEPS, "batch": BATCH}}
    try:
        run = wandb.init(**settings)
    except wandb.errors.CommError as error:
        print(f"W&B gives no answer, so `wandb sync` has to send this attempt from WANDB_DIR: {error}")
        wandb.teardown()  # else the run's id is in use
        run = wandb.init(mode="offline", **settings)
    # W&B drops a step below its own count; with an axis of our own, repeated steps count again.
    run.define_metric("*", step_metric="train_step")
    return lambda step, loss: run.log({"train_step": step, "loss": loss})


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
images, labels = digits.load()[0].tensors
steps_per_epoch = len(images) // BATCH
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
state = State(model=model, optimizer=optimizer)

logs: list[Log] = []
if rank == 0:
    logs += [mlflow_log()] if os.environ.get("MLFLOW_TRACKING_URI") else []
    logs += [wandb_log()] if os.environ.get("WANDB_API_KEY") else []

for step in state.steps(STEPS):
    epoch, place = divmod(step, steps_per_epoch)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
    mine = order[place * BATCH : (place + 1) * BATCH][rank::world]
    loss = cross_entropy(model(images[mine]), labels[mine])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    state.report(loss=loss, samples=BATCH)
    dist.all_reduce(mean := loss.detach() / world)
    for log in logs:
        log(step, mean.item())
dist.destroy_process_group()
