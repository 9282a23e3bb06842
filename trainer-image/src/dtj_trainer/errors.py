"""The exceptions that this package raises on purpose.

TrainerError
├── ConfigError            a field, flag or variable is wrong; the message names it and what to write
├── SinkError              a place for records (TensorBoard, MLflow) rejected one
├── NonFiniteLoss          the loss stays NaN or infinite; further training would only spoil the checkpoints
├── RendezvousFailed       a rank did not join in time, or rank 0 can't be reached; the message names it
├── RankMismatch           ranks differ in config, code or world size; the message names them
├── OutOfMemory            a step ran out of memory after earlier steps had not; another attempt may succeed
├── SnapshotError          the state can't be kept in memory; training continues without
└── CheckpointError
    ├── CheckpointInvalid  a checkpoint is torn: a file is missing, short, or has another checksum
    ├── LeaseLost          a newer attempt owns the checkpoint folder; this one may not commit
    └── CheckpointStalled  the volume did not finish a save within its deadline

Stopped is a SystemExit and not a TrainerError, so that no `except Exception` of a user's loop can
keep the process alive.
"""

from __future__ import annotations

import sys
from typing import Any

from dtj_trainer import quick_exit

_CODE: Any = SystemExit.code  # a descriptor


class TrainerError(Exception):
    """Root of the tree."""


class ConfigError(TrainerError, ValueError):
    """A field, flag or environment variable has a value that can't work."""


class SinkError(TrainerError):
    """A place for records can't take them; training continues without it."""


class NonFiniteLoss(TrainerError):
    """`max_nonfinite` logged losses in a row were not finite."""


class RendezvousFailed(TrainerError):
    """A rank did not join within the group's timeout, or rank 0's address can't be reached."""


class RankMismatch(TrainerError):
    """Ranks of one group were started with different configs, code or world sizes."""


class Stopped(SystemExit):
    """The group stopped cleanly after SIGTERM; uncaught, the process exits with 128 + SIGTERM.

    Uncaught, the process also skips the tear-down of torch (quick_exit).
    """

    def __init__(self, step: int) -> None:
        super().__init__(143)
        self.step = step

    @property
    def code(self) -> Any:
        """The exit code.

        No Python code runs below the read that the interpreter makes once the exception has left the
        main script. Every other reader, such as a test or a multiprocessing child, has a frame.
        """
        code = _CODE.__get__(self)
        if sys._getframe().f_back is None and type(code) is int:
            quick_exit.leave_after_exit_handlers(code)
        return code

    @code.setter
    def code(self, code: Any) -> None:
        _CODE.__set__(self, code)

    def __str__(self) -> str:
        return f"stopped by SIGTERM after step {self.step}"


class OutOfMemory(TrainerError):
    """A step ran out of memory after earlier steps had not."""


class SnapshotError(TrainerError):
    """The state can't be kept in memory, or can't be restored from there."""


class CheckpointError(TrainerError):
    """A checkpoint could not be written or read."""


class CheckpointInvalid(CheckpointError):
    """A checkpoint on the volume is torn."""


class LeaseLost(CheckpointError):
    """The lease file names a newer attempt than ours."""


class CheckpointStalled(CheckpointError):
    """A save did not end within its deadline."""
