"""Functions for the ranks of test_own_files, importable by the forked processes."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.distributed as dist

from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.checkpoint.retention import RetentionConfig
from dtj_trainer.state import State, StateConfig

FOLDER = "shards"


class Shards:
    """A part of which each rank has a number, with a file for each rank, as a sharded engine writes them."""

    def __init__(self) -> None:
        self.number = 0.0
        self.loaded: list[float] = []

    def nonfinite(self) -> str:
        return "" if self.number < 4 or dist.get_rank() == 0 else "number"

    def save_files(self, folder: Path) -> None:
        (folder / FOLDER).mkdir(exist_ok=True)
        (folder / FOLDER / f"{dist.get_rank()}.json").write_text(json.dumps(self.number))
        dist.barrier()

    def load_files(self, folder: Path) -> None:
        self.loaded = [json.loads(path.read_text()) for path in sorted((folder / FOLDER).iterdir())]
        self.number = self.loaded[0]


def count(directory: str, steps: int, limit: float = 3.0) -> None:
    """Counts to `steps` on every rank, but not beyond `limit`; rank 0 writes what it has loaded."""
    part = Shards()
    checkpoint = CheckpointConfig(
        directory=Path(directory), every_steps=1, snapshot_every_steps=0, retention=RetentionConfig(keep_last=2),
        max_failures=1,
    )  # fmt: skip
    state = State(StateConfig(checkpoint=checkpoint), shards=part, other=torch.nn.Linear(1, 1))
    for _ in state.steps(steps):
        part.number = min(part.number + 1, limit)
    if state.group.rank == 0:
        Path(directory, "result.json").write_text(json.dumps({"loaded": part.loaded, "number": part.number}))
    state.close()
