"""A training by `Trainer` with strategy deepspeed, or ddp where no file of DeepSpeed is given.

deepspeed_trainer_script.py FOLDER [FILE [MICRO_BATCH_SIZE]]

Rank 0 writes its result to FOLDER/result.json and its losses to FOLDER/losses.jsonl. KILL: the rank that kills itself
at step KILL_AT of the first attempt. STEPS: the last step.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

from dtj_trainer import ScheduleConfig, StateConfig, TensorData, Trainer, TrainerConfig
from dtj_trainer.strategies import DdpConfig, DeepSpeedConfig
from dtj_trainer.telemetry.record import Record

BATCH, KILL_AT, EVERY = 8, 15, 4
SAVED_SECONDS = 60.0


class Losses:
    """A sink that writes each step's loss."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, record: Record) -> None:
        with self._path.open("a") as file:
            print(json.dumps({"step": record.step, "loss": record.loss}), file=file)

    def close(self) -> None:
        pass


def await_checkpoint(folder: Path, step: int) -> None:
    """Waits until the checkpoint is whole: it is written while the training continues."""
    ends = time.monotonic() + SAVED_SECONDS
    while not any(folder.glob(f"volumes/**/step-{step:08d}")):
        assert time.monotonic() < ends, f"no checkpoint of step {step}"
        time.sleep(0.01)


def main(folder: Path, file: str = "", micro_batch_size: str = "") -> None:
    steps, attempt = int(os.environ["STEPS"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    rank = int(os.environ["RANK"])
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(8, 33), torch.nn.Tanh(), torch.nn.Linear(33, 1))
    x = torch.randn(96, 8, generator=torch.Generator().manual_seed(1))
    data = TensorData(x, torch.tanh(x.sum(1, keepdim=True)))

    def loss(model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return torch.nn.functional.mse_loss(model(batch[0]).float(), batch[1])

    def after_step(step: int) -> None:
        if os.environ.get("KILL") == str(rank) and attempt == 0 and step + 1 == KILL_AT:
            await_checkpoint(folder, KILL_AT // EVERY * EVERY)
            os.kill(os.getpid(), signal.SIGKILL)

    config = TrainerConfig(
        steps=steps,
        global_batch_size=BATCH,
        micro_batch_size=int(micro_batch_size) if micro_batch_size else None,
        clip_norm=1.0,
        strategy=DeepSpeedConfig(config=Path(file)) if file else DdpConfig(),
        # Of the shape, the length is the run's: it is the same in runs that end earlier.
        schedule=ScheduleConfig(kind="constant", warmup_steps=10),
        state=StateConfig(log_every_steps=1),
    )
    with Trainer(config) as trainer:
        started = []
        trainer.on_start = lambda state: started.append(state.step)
        result = trainer.fit(
            model, data, loss=loss, validation=data, measure=lambda model, batch: {"error": loss(model, batch)},
            after_step=after_step, sinks=[Losses(folder / "losses.jsonl")],
        )  # fmt: skip
        world = trainer.group.world_size
    if rank == 0:
        found = {"error": result.validation["error"], "step": result.step, "resumed": started[0], "world": world}
        (folder / "result.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
