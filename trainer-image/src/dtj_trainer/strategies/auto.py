"""Chooses the strategy with the least communication whose state fits in memory (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from dtj_trainer.errors import ConfigError
from dtj_trainer.strategies.ddp import DdpConfig
from dtj_trainer.strategies.fsdp import FsdpConfig, HsdpConfig


@dataclass(kw_only=True, slots=True)
class AutoConfig:
    """`auto` chooses between ddp, hsdp, fsdp and fsdp with CPU offload."""

    memory_share: float = 0.6
    """The fraction of a device's memory for weights, gradients and optimizer state; the rest is for activations."""

    def __post_init__(self) -> None:
        if not 0 < self.memory_share <= 1:
            raise ConfigError(
                f"strategy.memory_share={self.memory_share}: write a fraction of the memory, above 0 and at most 1"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFacts:
    """The sizes of the model and of the group that the choice depends on."""

    parameters: int
    parameter_bytes: int
    optimizer_bytes_per_parameter: int
    """8 for Adam in fp32, 4 for SGD with momentum."""
    device_bytes: int
    """Memory of the smallest device of the group."""
    world_size: int
    local_world_size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A strategy's config, and the reason in a sentence."""

    config: DdpConfig | FsdpConfig
    reason: str


def choose(facts: ModelFacts, config: AutoConfig) -> Choice:
    """Returns the first that fits, by how much it sends: ddp, hsdp within a node, fsdp over all, fsdp with offload."""
    state = 2 * facts.parameter_bytes + facts.optimizer_bytes_per_parameter * facts.parameters
    room = config.memory_share * facts.device_bytes

    def choice(ranks: int, config: DdpConfig | FsdpConfig, name: str) -> Choice:
        verdict = "fits" if state / ranks <= room else "does not fit"
        over = "whole on each rank" if ranks == 1 else f"over {ranks} ranks"
        return Choice(
            config=config,
            reason=f"{name}: {facts.parameters:,} parameters need {state / 2**30:.2f} GiB with gradients and "
            "optimizer; "
            f"{over} that {verdict} in {config_share(room)}",
        )

    def config_share(value: float) -> str:
        return f"{value / 2**30:.2f} GiB ({config.memory_share:.0%} of the device's memory)"

    if facts.world_size == 1 or state <= room:
        return choice(1, DdpConfig(), "ddp")
    nodes, local = divmod(facts.world_size, facts.local_world_size)
    if nodes > 1 and local == 0 and facts.local_world_size > 1 and state / facts.local_world_size <= room:
        return choice(facts.local_world_size, HsdpConfig(shard_size=facts.local_world_size), "hsdp")
    if state / facts.world_size <= room:
        return choice(facts.world_size, FsdpConfig(), "fsdp")
    return choice(facts.world_size, FsdpConfig(cpu_offload=True), "fsdp with CPU offload")
