"""Everything that this package raises on purpose.

TrainerError
├── ConfigError            a field, flag or variable is wrong; the message names it and says what to write
├── SinkError              a place for records (TensorBoard, MLflow) refused one
├── NonFiniteLoss          the loss is NaN or infinite, and stays so: training on would only spoil what is saved
├── RendezvousFailed       a rank did not come in time, or rank 0 can't be reached; the message names it
├── RankMismatch           ranks that must agree (config, code, world) do not; the message names them
├── OutOfMemory            a step found no room; another attempt may
└── CheckpointError
    ├── CheckpointInvalid  a checkpoint is torn: a file is missing, short, or has another checksum
    ├── LeaseLost          a newer attempt owns the checkpoint folder; this one may not commit
    └── CheckpointStalled  the volume did not finish a save within its deadline

Stopped is a SystemExit and no TrainerError, so that no `except Exception` of a user's loop can keep the process alive.
"""

from __future__ import annotations


class TrainerError(Exception):
    """Root of the tree."""


class ConfigError(TrainerError, ValueError):
    """A field, flag or environment variable has a value that can't work."""


class SinkError(TrainerError):
    """A place for records can't take them; training goes on without it."""


class NonFiniteLoss(TrainerError):
    """So many losses in a row were not finite as `max_nonfinite` allows."""


class RendezvousFailed(TrainerError):
    """The ranks did not meet: one did not come within the group's timeout, or rank 0's address can't be reached."""


class RankMismatch(TrainerError):
    """Ranks of one group were started with different configs, code or world sizes."""


class Stopped(SystemExit):
    """The group was asked to stop and has done so cleanly; uncaught, the process exits with 128 + SIGTERM."""

    def __init__(self, step: int) -> None:
        super().__init__(143)
        self.step = step

    def __str__(self) -> str:
        return f"stopped by SIGTERM after step {self.step}"


class OutOfMemory(TrainerError):
    """A step ran out of memory after others had not."""


class CheckpointError(TrainerError):
    """A checkpoint could not be written or read."""


class CheckpointInvalid(CheckpointError):
    """A checkpoint on the volume is torn."""


class LeaseLost(CheckpointError):
    """The lease file names a newer attempt than ours."""


class CheckpointStalled(CheckpointError):
    """A save did not end within its deadline."""
