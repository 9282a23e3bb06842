"""Strategies behind one small interface (base.Strategy); `make` builds the one that a config names."""

from __future__ import annotations

from typing import Any

from dtj_trainer.communication import CASTS, CommunicationConfig
from dtj_trainer.errors import ConfigError
from dtj_trainer.strategies.auto import AutoConfig, Choice, ModelFacts, choose
from dtj_trainer.strategies.base import Strategy, tensor_bytes
from dtj_trainer.strategies.blocks import blocks, describe_blocks
from dtj_trainer.strategies.ddp import Ddp, DdpConfig
from dtj_trainer.strategies.deepspeed import DeepSpeed, DeepSpeedConfig
from dtj_trainer.strategies.fsdp import Fsdp, FsdpConfig, HsdpConfig
from dtj_trainer.strategies.initial_weights import Fill, check_not_meta, shapes, stand_in
from dtj_trainer.strategies.local_sgd import LocalSgd, LocalSgdConfig
from dtj_trainer.strategies.scratch.ddp import DdpScratch, DdpScratchConfig
from dtj_trainer.strategies.scratch.fsdp import FsdpScratch, FsdpScratchConfig
from dtj_trainer.strategies.scratch.zero import Zero, Zero1Config, Zero2Config

StrategyConfig = (
    DdpConfig
    | FsdpConfig
    | HsdpConfig
    | DdpScratchConfig
    | FsdpScratchConfig
    | Zero1Config
    | Zero2Config
    | LocalSgdConfig
    | DeepSpeedConfig
    | AutoConfig
)
KINDS: dict[str, type[StrategyConfig]] = {
    "auto": AutoConfig,
    "ddp": DdpConfig,
    "fsdp": FsdpConfig,
    "hsdp": HsdpConfig,
    "ddp_scratch": DdpScratchConfig,
    "fsdp_scratch": FsdpScratchConfig,
    "zero1": Zero1Config,
    "zero2": Zero2Config,
    "local_sgd": LocalSgdConfig,
    "deepspeed": DeepSpeedConfig,
}

FLAT = (FsdpScratchConfig, Zero1Config)
"""Configs of the strategies whose optimizer has flat shards, which are no parameters of the module."""


def name_of(config: StrategyConfig) -> str:
    """Returns the name that a config has in train.yaml."""
    return next(name for name, kind in KINDS.items() if kind is type(config))


def make(
    config: StrategyConfig,
    pattern: str | None = None,
    communication: CommunicationConfig | None = None,
    fill: Fill | None = None,
) -> Strategy[Any]:
    """Returns the strategy of a config, for which `auto` must have been decided (auto.choose).

    `pattern` names the blocks of a model (blocks.py). `fill` has the weights of a model on the meta device, for
    fsdp and hsdp. Raises ConfigError if the strategy can't send less.
    """
    if communication is not None and not communication.is_plain:
        _check_communication(config, communication)
    match config:
        case DdpConfig():
            return Ddp(config, communication)
        case FsdpConfig():
            return Fsdp(config, pattern, fill)
        case DdpScratchConfig():
            return DdpScratch(config, communication)
        case FsdpScratchConfig():
            return FsdpScratch(config, pattern, communication)
        case Zero1Config():
            return Zero(config, communication)
        case LocalSgdConfig():
            return LocalSgd(config)
        case DeepSpeedConfig():
            return DeepSpeed(config)
        case AutoConfig():
            raise ValueError("auto is not a strategy: call auto.choose first")


def _check_communication(config: StrategyConfig, communication: CommunicationConfig) -> None:
    """Raises ConfigError if the strategy can't send gradients so."""
    casts = communication.is_cast and isinstance(config, FLAT)
    if casts or isinstance(config, (DdpConfig, DdpScratchConfig)):
        return
    field = f"method={communication.method}"
    if communication.hierarchical:
        field = "hierarchical: true"
    elif communication.noise_scale and communication.method in CASTS:
        field = "noise_scale: true"
    instead = "write strategy ddp or ddp_scratch, or leave communication out"
    if communication.is_cast and isinstance(config, FsdpConfig):
        instead = f"write strategy.reduce_dtype: {communication.method}"
    raise ConfigError(f"communication.{field} does not work with strategy {name_of(config)}: {instead}")


__all__ = [
    "FLAT", "KINDS", "AutoConfig", "Choice", "DdpConfig", "DdpScratchConfig", "DeepSpeed", "DeepSpeedConfig",
    "FsdpConfig", "FsdpScratchConfig", "HsdpConfig", "LocalSgd", "LocalSgdConfig", "ModelFacts", "Strategy",
    "StrategyConfig", "Zero1Config", "Zero2Config", "blocks", "check_not_meta", "choose", "describe_blocks", "make",
    "name_of", "shapes", "stand_in", "tensor_bytes",
]  # fmt: skip
