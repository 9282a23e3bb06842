"""The rank of a large job, with the standard library alone: its start costs no import of torch.

Ranks add whole numbers through rank 0, as tests/chaos/plain_script.py does, and log what tests/chaos/records.py reads.
With LIGHT_ALONE the script logs its start and sleeps: the pod of a StatefulSet without any group.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path


def open_log() -> int:
    """Returns the file of this process on the shared volume."""
    folder = Path(os.environ.get("LIGHT_FOLDER") or os.environ["DTJ_CHECKPOINT_DIR"]) / "log"
    folder.mkdir(parents=True, exist_ok=True)
    return os.open(folder / f"{socket.gethostname()}-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def alone(log: int) -> None:
    """Sleeps until SIGTERM, which process 1 of a container would ignore by default."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    ordinal = socket.gethostname().rpartition("-")[2]
    os.write(log, f"begin {time.monotonic():.6f} 0 {ordinal} 1 0\n".encode())
    while True:
        signal.pause()


class Log:
    """The log as plain_script's ring writes it."""

    def __init__(self, file: int) -> None:
        self._file = file

    def write(self, text: str) -> None:
        """Appends one record."""
        os.write(self._file, f"{text}\n".encode())


def train(log: Log) -> None:
    """Trains until a peer is lost, which ends the script with an error."""
    import plain_script  # type: ignore[import-not-found]  # lies beside this file in the pod

    rank, world, attempt = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "DTJ_ATTEMPT"))
    ring = plain_script.Ring(rank, world, attempt, log)
    log.write(f"begin {time.monotonic():.6f} {attempt} {rank} {world} 0")
    step, state = 0, plain_script.start()
    while True:
        total, _ = ring.reduce(plain_script.gradient(state, plain_script.ids_of(step)[rank::world]), 0)
        state, loss = plain_script.apply(state, total)
        step += 1
        log.write(f"step {time.monotonic():.6f} {attempt} {step} {loss.hex()} -")
        time.sleep(float(os.environ["LIGHT_STEP_SECONDS"]))


if __name__ == "__main__":
    if os.environ.get("LIGHT_ALONE"):
        alone(open_log())
    else:
        train(Log(open_log()))
