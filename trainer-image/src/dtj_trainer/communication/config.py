"""The options of `communication:` in train.yaml: what the ranks send of their gradients."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal, get_args

from dtj_trainer.errors import ConfigError

Method = Literal["none", "auto", "fp16", "bf16", "powersgd", "topk", "randomk", "int8", "onebit"]
METHODS: tuple[Method, ...] = get_args(Method)
WITH_FEEDBACK: tuple[Method, ...] = ("auto", "powersgd", "topk", "randomk", "int8", "onebit")
"""Methods that keep for the next step what they have not sent."""
WARMUP_STEPS = 100
"""The default of the methods whose ranks keep most of a gradient for later."""
FIRST_RATIO = 0.25
"""The ratio at which annealing begins, as in Deep Gradient Compression (Lin et al. 2018, section 3.3)."""


@dataclass(kw_only=True, slots=True)
class LayerRule:
    """The rank of the parameters that a pattern of names matches."""

    names: str
    """A pattern such as *.attention.*"""
    rank: int
    """The rank of powersgd's factors of these parameters."""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigError(f"communication.rules: rank={self.rank} of {self.names!r}: write 1 or more")


@dataclass(kw_only=True, slots=True)
class CommunicationConfig:
    """How gradients are sent. The methods other than casts keep on each rank what they have not sent
    (error feedback), and add it to the next step's gradients."""

    method: Method = "none"
    """none sends gradients as they are. auto tries none, bf16 and powersgd in the first steps, logs their
    times, and keeps the one that pays. fp16 and bf16 send half the bytes, also with fsdp_scratch, zero1 and
    zero2; the others are for ddp and ddp_scratch. powersgd sends two thin
    factors of each matrix, topk the largest elements, randomk random ones, int8 a byte and onebit a
    bit for each element."""
    rank: int = 12
    """The rank of powersgd's factors."""
    rules: list[LayerRule] = field(default_factory=list)
    """Other ranks for some parameters; the first rule that matches a name holds."""
    ratio: float = 0.01
    """The share of elements that topk and randomk send."""
    warmup_steps: int | None = None
    """The first steps of a run, which send everything: gradients change most there. Default: 100 with
    powersgd, topk, randomk and onebit, else 0. auto: at least 100, which send bf16 once powersgd is chosen."""
    anneal_steps: int = 0
    """Steps after the warm-up in which the ratio of topk and randomk falls from 0.25 to `ratio`."""
    dense: list[str] = field(default_factory=list)
    """Patterns of names of parameters that are always sent as they are, such as head.*"""
    dense_embeddings: bool = True
    """Whether the parameters of embeddings are too: few of their rows have a gradient in a step."""
    min_elements: int = 1024
    """Smaller parameters, and those with one dimension, are always sent as they are."""

    hierarchical: bool = False
    """Whether gradients are added up within each node first, so that less crosses the links between the
    nodes; with method none, and with fp16 and bf16, which then cast only between the nodes. For gloo and
    several ranks on each of several nodes."""

    noise_scale: bool = False
    """Whether logged steps report gradient_noise_scale, the batch size up to which more samples in a step
    save about as many steps: for several ranks, at the cost of a pass over the gradients."""

    def __post_init__(self) -> None:
        if self.hierarchical and self.method not in ("none", "fp16", "bf16"):
            raise ConfigError(
                f"communication.hierarchical does not work with communication.method={self.method}: "
                "write none, fp16 or bf16, or hierarchical: false"
            )
        if self.method not in METHODS:
            raise ConfigError(f"communication.method={self.method!r}: write one of {', '.join(METHODS)}")
        if self.rank < 1:
            raise ConfigError(f"communication.rank={self.rank}: write 1 or more")
        if not 0 < self.ratio <= 1:
            raise ConfigError(f"communication.ratio={self.ratio}: write a share of the elements, above 0 and at most 1")
        for name in ("warmup_steps", "anneal_steps", "min_elements"):
            if (getattr(self, name) or 0) < 0:
                raise ConfigError(f"communication.{name}={getattr(self, name)}: write 0 or more")

    @property
    def plain_steps(self) -> int:
        """The first steps of a run, which are not compressed."""
        if self.method == "auto":
            return max(self.warmup_steps or 0, WARMUP_STEPS)
        if self.warmup_steps is None:
            return WARMUP_STEPS if self.keeps_residuals and self.method != "int8" else 0
        return self.warmup_steps

    @property
    def is_plain(self) -> bool:
        """Whether the strategy itself sends the gradients."""
        return self.method == "none" and not self.hierarchical and not self.noise_scale

    @property
    def is_cast(self) -> bool:
        """Whether gradients are only sent in a smaller type."""
        return self.method in ("fp16", "bf16") and not self.hierarchical and not self.noise_scale

    @property
    def keeps_residuals(self) -> bool:
        """Whether ranks keep what they have not sent."""
        return self.method in WITH_FEEDBACK

    def is_dense(self, name: str) -> bool:
        """Returns whether a pattern of `dense` matches the parameter's name."""
        return any(fnmatchcase(name, pattern) for pattern in self.dense)

    def check_patterns(self, names: Collection[str], trained: Collection[str]) -> None:
        """Raises ConfigError for a pattern that matches nothing, and so is misspelt.

        Args:
            names: All names of the model's parameters, several of a tied one.
            trained: The names of those that are trained, one of each.
        """
        for field_name, patterns, known in (
            ("dense", self.dense, names),
            ("rules", [rule.names for rule in self.rules], trained),
        ):
            for pattern in patterns:
                if not any(fnmatchcase(name, pattern) for name in known):
                    some = ", ".join(sorted(known)[:5])
                    raise ConfigError(
                        f"communication.{field_name}: {pattern!r} matches no parameter: write a pattern of names of "
                        f"parameters, such as {some}"
                    )

    def rank_of(self, name: str) -> int:
        """Returns the rank of the factors of the parameter."""
        return next((rule.rank for rule in self.rules if fnmatchcase(name, rule.names)), self.rank)

    def ratio_at(self, step: int) -> float:
        """Returns the share of elements to send in a step, counted from the end of the warm-up.

        The share falls exponentially while it is annealed.
        """
        if step >= self.anneal_steps or self.ratio >= FIRST_RATIO:
            return self.ratio
        return FIRST_RATIO * math.pow(self.ratio / FIRST_RATIO, step / self.anneal_steps)
