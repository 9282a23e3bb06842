"""Chooses the checkpoints to remove (pure): the last n, every m steps, and the best by one metric stay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dtj_trainer.checkpoint.folder import CommittedCheckpoint
from dtj_trainer.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class RetentionConfig:
    """The checkpoints that stay on the volume."""

    keep_last: int = 3
    """How many of the newest stay."""
    keep_every_steps: int | None = None
    """Checkpoints whose step is a multiple of this stay for good."""
    keep_best: int = 0
    """How many of the best by `metric` stay."""
    metric: str = "loss"
    mode: Literal["min", "max"] = "min"

    def __post_init__(self) -> None:
        if self.keep_last < 1:
            raise ConfigError(
                f"checkpoint.keep_last={self.keep_last}: write 1 or more (2 or more survive a torn newest one)"
            )
        if self.keep_every_steps is not None and self.keep_every_steps < 1:
            raise ConfigError(
                f"checkpoint.keep_every_steps={self.keep_every_steps}: write a number of steps, or leave it out"
            )
        if self.keep_best < 0:
            raise ConfigError(f"checkpoint.keep_best={self.keep_best}: write 0 or more")
        if self.mode not in ("min", "max"):
            raise ConfigError(f"checkpoint.mode={self.mode!r}: write min (a loss) or max (an accuracy)")


def to_remove(checkpoints: Sequence[CommittedCheckpoint], config: RetentionConfig) -> list[CommittedCheckpoint]:
    """Returns those of `checkpoints`, newest first, that no rule keeps.

    A checkpoint that lacks the metric can't be best.
    """

    def badness(c: CommittedCheckpoint) -> float:
        value = c.manifest.metrics.get(config.metric, math.nan)
        return math.inf if math.isnan(value) else value if config.mode == "min" else -value

    ranked = sorted((c for c in checkpoints if math.isfinite(badness(c))), key=badness)
    best = {c.step for c in ranked[: config.keep_best]}
    return [
        c
        for c in checkpoints[config.keep_last :]
        if c.step not in best and not (config.keep_every_steps and c.step % config.keep_every_steps == 0)
    ]
