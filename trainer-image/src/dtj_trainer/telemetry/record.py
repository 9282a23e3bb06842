"""The record of one logged step, and the sinks that write it."""

from __future__ import annotations

import errno
import json
import math
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

RETRIES = 3
RETRY_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """Numbers after `step` optimizer steps: means over all ranks, but for names like slowest_rank."""

    step: int
    total_steps: int | None
    attempt: int
    loss: float | None = None
    samples_per_second: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    """Flat name to number: epoch, lr, accuracy, grad_norm, seconds by section, ..."""
    per_rank: dict[str, list[float]] = field(default_factory=dict)
    """Seconds per step by section, one number per rank."""
    time: float = field(default_factory=time.time)
    """Unix seconds."""

    def flat(self) -> dict[str, Any]:
        """Returns all known values by name, in the order in which a person reads them."""
        head: dict[str, Any] = {
            "step": self.step,
            "total_steps": self.total_steps,
            "attempt": self.attempt,
            "loss": self.loss,
        }
        body = head | {"samples_per_second": self.samples_per_second} | self.metrics
        body |= {"per_rank": self.per_rank or None, "time": self.time}
        return {k: v for k, v in body.items() if v is not None}

    def numbers(self) -> dict[str, float]:
        """Returns what can be drawn as a curve: finite numbers by name."""
        named = {
            "loss": self.loss,
            "samples_per_second": self.samples_per_second,
            "attempt": self.attempt,
        } | self.metrics
        return {k: float(v) for k, v in named.items() if v is not None and math.isfinite(v)}


class Sink(Protocol):
    """A place for records. Only rank 0 has sinks."""

    def write(self, record: Record) -> None: ...

    def close(self) -> None: ...


class Console:
    """Prints one line per record: `step=120 epoch=3 loss=0.1234 …`.

    Losses and accuracies are exact repr.
    """

    SHOWN = (
        "step", "epoch", "loss", "accuracy", "lr", "grad_norm", "samples_per_second", "tokens_per_second",
        "images_per_second", "mfu", "scaling_efficiency",
    )  # fmt: skip

    def write(self, record: Record) -> None:
        """Writes to stdout and flushes, because the agent reads lines."""
        flat = record.flat()
        shown = [k for k in self.SHOWN if k in flat] + [k for k in flat if k.startswith("validation_")]
        line = " ".join(f"{k}={_short(k, flat[k])}" for k in shown)
        if sys.stdout.isatty():  # one line with a bar, overwritten each time
            done = int(20 * record.step / (record.total_steps or record.step))
            sys.stdout.write(f"\r\x1b[K{'█' * done}{'·' * (20 - done)} {line}")
        else:
            sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def close(self) -> None:
        """Ends the line of the bar."""
        if sys.stdout.isatty():
            sys.stdout.write("\n")


def _short(key: str, value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return repr(value) if "loss" in key or "accuracy" in key else f"{value:.4g}"


class JsonLines:
    """Appends one JSON object per record: the run's history over all attempts.

    Each line is one write, so none is torn.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        end = size = os.fstat(self._fd).st_size
        while end and os.pread(self._fd, 1, end - 1) != b"\n":
            end -= 1
        if end != size:
            # An earlier writer was killed inside its line, or the volume was full.
            os.ftruncate(self._fd, end)

    def write(self, record: Record) -> None:
        """Writes floats as repr, so that reading them returns the same bits.

        Raises OSError if the volume takes no whole line for a few seconds. Retries, because a
        save that does not fit fills the volume until the save is abandoned. Call it in a thread
        beside the training.
        """
        line = (json.dumps(record.flat()) + "\n").encode()
        for left in range(RETRIES, -1, -1):
            try:
                self._append(line)
                break
            except OSError:
                if left == 0:
                    raise
                time.sleep(RETRY_SECONDS)

    def _append(self, line: bytes) -> None:
        if (written := os.write(self._fd, line)) != len(line):
            os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)
