"""When and how checkpoints are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from dtj_trainer.checkpoint.retention import RetentionConfig
from dtj_trainer.errors import ConfigError

DEFAULT_EVERY_STEPS = 50


@dataclass(kw_only=True, slots=True)
class CheckpointConfig:
    """When and how checkpoints are made. Fields left None come from the environment that the agent gives."""

    directory: Path | None = None
    every_steps: int | None = None
    """None: as the agent says, else 50."""
    asynchronous: bool = True
    """False: the training thread waits until the checkpoint is committed."""
    retries: int = 2
    """How often one save is tried again at once after the volume refused it."""
    retry_seconds: float = 1.0
    timeout_seconds: float = 600.0
    """After this long a save counts as failed, and waiting for it ends."""
    max_failures: int = 5
    """So many failed saves in a row end the training with CheckpointError, and so does one that takes longer than
    `timeout_seconds`; 0: train on without checkpoints, reporting each failure."""
    retention: RetentionConfig = field(default_factory=RetentionConfig)

    def __post_init__(self) -> None:
        if self.every_steps is not None and self.every_steps < 1:
            raise ConfigError(f"checkpoint.every_steps={self.every_steps}: write a number of steps, 1 or more")
        if self.retries < 0 or self.retry_seconds < 0:
            raise ConfigError("checkpoint.retries and checkpoint.retry_seconds: write 0 or more")
        if self.timeout_seconds <= 0:
            raise ConfigError(f"checkpoint.timeout_seconds={self.timeout_seconds}: write seconds above 0")
        if self.max_failures < 0:
            raise ConfigError(f"checkpoint.max_failures={self.max_failures}: write a count, or 0 for no limit")
