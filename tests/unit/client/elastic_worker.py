"""A training by the Trainer that rank 0 records step by step: the samples, and the number of ranks.

elastic_worker.py EPOCHS

A step takes 0.4 s until the third attempt, so that two changes of size find the job running.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

from dtj_trainer import Trainer, TrainerConfig
from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.data.source import TensorData
from dtj_trainer.state import StateConfig

SAMPLES, BATCH = 24, 6  # a step is shared evenly by two ranks, and by three


def main() -> None:
    folder, attempt = Path(os.environ["DTJ_CHECKPOINT_DIR"]), int(os.environ["DTJ_ATTEMPT"])
    data = TensorData(torch.arange(SAMPLES), torch.randn(SAMPLES, 4))
    config = TrainerConfig(
        epochs=int(sys.argv[1]),
        global_batch_size=BATCH,
        state=StateConfig(log_every_steps=1, checkpoint=CheckpointConfig(directory=folder, every_steps=5)),
    )
    with Trainer(config) as trainer:
        taken: list[int] = []

        def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            numbers, x = batch
            taken.extend(numbers.tolist())
            return (model(x) - x).square().mean()

        def after_step(step: int) -> None:
            everywhere = trainer.group.all_objects(list(taken))
            taken.clear()
            if trainer.group.rank == 0:
                line = {"step": step, "samples": everywhere, "attempt": attempt}
                with (folder / "steps.jsonl").open("a") as file:
                    file.write(json.dumps(line) + "\n")
            if attempt < 3:
                time.sleep(0.4)

        trainer.fit(nn.Linear(4, 4), data, loss=loss, after_step=after_step)


if __name__ == "__main__":
    main()
