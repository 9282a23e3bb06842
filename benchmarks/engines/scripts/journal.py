"""The log of a rank, which benchmarks/recovery/logbook.py reads; and what all trainings here share."""

from __future__ import annotations

import os
import time

EVERY = 10
"""Steps between two checkpoints."""
PAUSE = float(os.environ.get("RECOVERY_STEP_SECONDS", "0.05"))
"""Seconds that a step lasts beside its work."""


class Journal:
    """One entry of this process into the training."""

    def __init__(self, rank: int, world: int) -> None:
        folder, pid = os.environ["RECOVERY_FOLDER"], os.getpid()
        self._file = os.open(f"{folder}/log/{pid}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._write(f"begin {time.monotonic():.6f} {os.environ.get('DTJ_ATTEMPT', '0')} {rank} {world} {pid}")

    def step(self, step: int) -> None:
        """Logs a step that this rank has completed."""
        self._write(f"step {time.monotonic():.6f} {step}")

    def _write(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode())


def folder() -> str:
    """Returns the folder of the trial's checkpoints."""
    found = os.environ["RECOVERY_FOLDER"] + "/checkpoints"
    os.makedirs(found, exist_ok=True)
    return found
