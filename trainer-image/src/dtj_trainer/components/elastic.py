"""The options for a changed number of ranks: which batch stays the same, and what follows for the rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from dtj_contract import names
from dtj_trainer.data.step_size import BatchRule
from dtj_trainer.errors import ConfigError

RateRule = Literal["Keep", "Linear", "Sqrt"]


@dataclass(kw_only=True, slots=True)
class ElasticConfig:
    """The rules for a changed number of ranks. None: as the job's `spec.elastic` has it."""

    batch: BatchRule | None = None
    """Global: the samples of a step over all ranks; ranks split them in other shares. PerRank: the
    samples of one rank, which are global_batch_size over the ranks of the first attempt."""
    learning_rate: RateRule | None = None
    """With PerRank, the rate after a change. Keep: as configured. Linear, Sqrt: scaled with the batch
    of the step, or with its square root, relative to the first attempt."""

    def __post_init__(self) -> None:
        check("elastic.batch", self.batch, BatchRule)
        check("elastic.learning_rate", self.learning_rate, RateRule)


def check(name: str, value: str | None, options: object) -> None:
    """Raises ConfigError for a value that is not among the options of a Literal."""
    if value is not None and value not in get_args(options):
        raise ConfigError(f"{name}={value!r}: write {' or '.join(get_args(options))}")


def check_environment(batch: str | None, learning_rate: str | None) -> None:
    """Raises ConfigError, which names the variable, for a rule that does not exist."""
    check(names.ENV_ELASTIC_BATCH, batch, BatchRule)
    check(names.ENV_ELASTIC_LEARNING_RATE, learning_rate, RateRule)


def rate_factor(growth: float, rule: str) -> float:
    """Returns the factor of the learning rate for a batch that is `growth` times the first attempt's."""
    return {"Keep": 1.0, "Linear": growth, "Sqrt": math.sqrt(growth)}[rule]


def shard_size(size: int, world_size: int) -> int:
    """Returns the ranks that share a replica: the least number from `size` on that divides the world."""
    return next(n for n in range(min(size, world_size), world_size + 1) if world_size % n == 0)
