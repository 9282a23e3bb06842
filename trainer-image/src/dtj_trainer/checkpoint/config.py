"""Options of checkpoints: when and how they are saved."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dtj_trainer.checkpoint.retention import RetentionConfig
from dtj_trainer.errors import ConfigError

DEFAULT_EVERY_STEPS = 50


@dataclass(kw_only=True, slots=True)
class CheckpointConfig:
    """When and how checkpoints are saved.

    Fields left None come from the environment that the agent sets.
    """

    directory: Path | None = None
    resume_from: Path | None = None
    """The checkpoint of another run with which this one continues at its step, as long as it has none of its own: a
    step's folder, or a job's folder for its newest one."""
    every_steps: int | None = None
    """None: as the agent's environment has it, else 50."""
    snapshot_every_steps: int | Literal["auto"] = "auto"
    """Steps between two snapshots of the state in the pod's shared memory. auto: so often that it costs 2 % of
    the training's time, by what the last ones have cost; 0: none. Only under our agent."""
    asynchronous: bool = True
    """False: the training thread waits until the checkpoint is committed."""
    retries: int = 2
    """How often one save is retried after the volume has failed it."""
    retry_seconds: float = 1.0
    timeout_seconds: float = 600.0
    """How long a save may take. After that it counts as failed, and waiting for it ends."""
    max_failures: int = 5
    """How many failed saves in a row end the training with CheckpointError. A save that takes
    longer than `timeout_seconds` ends it too. 0: training continues without checkpoints, and each
    failure is reported."""
    retention: RetentionConfig = field(default_factory=RetentionConfig)

    def __post_init__(self) -> None:
        if self.every_steps is not None and self.every_steps < 1:
            raise ConfigError(f"checkpoint.every_steps={self.every_steps}: write a number of steps, 1 or more")
        every = self.snapshot_every_steps
        if every != "auto" and (not isinstance(every, int) or isinstance(every, bool) or every < 0):
            raise ConfigError(
                f"checkpoint.snapshot_every_steps={every!r}: write auto, a number of steps, or 0 for none"
            )
        if self.resume_from is not None:
            self.resume_from = Path(self.resume_from)
        if self.retries < 0 or self.retry_seconds < 0:
            raise ConfigError("checkpoint.retries and checkpoint.retry_seconds: write 0 or more")
        if self.timeout_seconds <= 0:
            raise ConfigError(f"checkpoint.timeout_seconds={self.timeout_seconds}: write seconds above 0")
        if self.max_failures < 0:
            raise ConfigError(f"checkpoint.max_failures={self.max_failures}: write a count, or 0 for no limit")

    def own_folder(self, default: Path | None) -> Path | None:
        """Returns the folder of this run's checkpoints. Raises ConfigError if `resume_from` has no other one."""
        own, other = self.directory or default, self.resume_from
        if other is None:
            return own
        if own is None:
            raise ConfigError(f"checkpoint.resume_from={other}: write checkpoint.directory too, for this run's own")
        if own.resolve() in (other.resolve(), other.resolve().parent):
            raise ConfigError(
                f"checkpoint.resume_from={other} is in this run's own folder, of which it takes the newest: write "
                "another checkpoint.directory"
            )
        return own
