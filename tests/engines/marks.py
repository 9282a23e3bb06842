"""Steps that the scripts of this folder note, their pauses, and the kill that a test asks for.

Beside the training itself, variables of the environment decide:
TIMES: a folder for the moments of each rank and attempt, in the format of benchmarks/recovery/logbook.py.
PAUSE: seconds of sleep after each step.
KILL: the rank that kills itself at step KILL_AT of the first attempt.
GO: a file for which all ranks wait at this step of the first attempt.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

KILL_AT = 15
GO_SECONDS = 240.0


def attempt() -> int:
    return int(os.environ["DTJ_ATTEMPT"])


def note(what: str, rank: int, *details: object) -> None:
    """Writes a moment of a rank, with a clock that all processes of a machine share."""
    if times := os.environ.get("TIMES"):
        Path(times).mkdir(parents=True, exist_ok=True)
        with open(f"{times}/{rank}-{attempt()}", "a") as file:
            print(what, f"{time.monotonic():.6f}", *details, file=file)


def begin(rank: int, world: int) -> None:
    note("begin", rank, attempt(), rank, world, os.getpid())


def after_step(step: int, rank: int) -> None:
    note("step", rank, step)
    time.sleep(float(os.environ.get("PAUSE") or 0))
    if attempt() == 1 and step == KILL_AT and (go := os.environ.get("GO")):
        end = time.monotonic() + GO_SECONDS
        while not os.path.exists(go) and time.monotonic() < end:
            time.sleep(0.1)


def maybe_die(step: int, rank: int) -> None:
    if attempt() == 1 and step == KILL_AT and os.environ.get("KILL") == str(rank):
        os.kill(os.getpid(), signal.SIGKILL)
