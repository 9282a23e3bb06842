"""`spec.elastic`: how a job continues with fewer pods, and with more."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from dtj_core.api.base_model import Model, Rule


class Elastic(Model):
    """Limits within which the group may train with fewer or more pods than it began with."""

    min_replicas: int = Field(ge=1, le=1024)
    """Pods with which the group trains at least."""
    max_replicas: int | None = Field(default=None, ge=1, le=1024)
    """Largest value that spec.replicas may have. Default: no limit."""
    wait_seconds: float = Field(default=10, ge=0, le=86400)
    """Seconds that the group waits for a lost pod to return before it continues without it."""
    batch: Literal["Global", "PerRank"] = "Global"
    """The batch that stays the same when the number of ranks changes, for scripts that use the
    training library. Global: the samples of one optimizer step of all ranks. PerRank: those of one rank."""
    learning_rate: Literal["Keep", "Linear", "Sqrt"] = "Keep"
    """Learning rate after a change of the global batch. Keep: as configured. Linear and Sqrt: scaled
    with the global batch, or with its square root. For scripts that use the training library."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
            message="minReplicas must not be greater than maxReplicas",
            holds=lambda self: self.max_replicas is None or self.min_replicas <= self.max_replicas,
            field="minReplicas",
        ),
    )
