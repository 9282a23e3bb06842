"""Early stopping: ends a run whose validation no longer improves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dtj_trainer.errors import ConfigError


@dataclass(kw_only=True, slots=True)
class EarlyStopConfig:
    """When to stop: after `patience` validations without a new best."""

    metric: str = "loss"
    mode: Literal["min", "max"] = "min"
    patience: int = 5
    min_delta: float = 0.0
    """A new best is better by more than this."""

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max"):
            raise ConfigError(f"early_stop.mode={self.mode!r}: write min (a loss) or max (an accuracy)")
        if self.patience < 1:
            raise ConfigError(f"early_stop.patience={self.patience}: write a number of validations, 1 or more")
        if self.min_delta < 0:
            raise ConfigError(f"early_stop.min_delta={self.min_delta}: write 0 or more")


class EarlyStop:
    """Counts validations without a new best.

    Saved in checkpoints, so that a restart does not reset the count.
    """

    def __init__(self, config: EarlyStopConfig) -> None:
        self._config = config
        self.best = math.inf
        self.waited = 0

    @property
    def should_stop(self) -> bool:
        """Whether the run should end."""
        return self.waited >= self._config.patience

    def update(self, measured: Mapping[str, float]) -> None:
        """Records one validation. Raises ConfigError if it lacks the metric."""
        if self._config.metric not in measured:
            raise ConfigError(f"early_stop.metric={self._config.metric!r}: write one of {sorted(measured)}")
        value = measured[self._config.metric] * (1 if self._config.mode == "min" else -1)
        if value < self.best - self._config.min_delta:
            self.best, self.waited = value, 0
        else:
            self.waited += 1

    def state_dict(self) -> dict[str, float]:
        """Returns the best value (lower is better) and the validations since."""
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Loads what `state_dict` returned."""
        self.best, self.waited = state["best"], int(state["waited"])
