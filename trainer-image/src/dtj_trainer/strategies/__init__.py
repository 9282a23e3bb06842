"""Strategies behind one small interface (base.Strategy); `make` builds the one that a config names."""

from __future__ import annotations

from dtj_trainer.strategies.auto import AutoConfig, Choice, Facts, choose
from dtj_trainer.strategies.base import Strategy, blocks, tensor_bytes
from dtj_trainer.strategies.ddp import Ddp, DdpConfig
from dtj_trainer.strategies.ddp_scratch import DdpScratch, DdpScratchConfig
from dtj_trainer.strategies.fsdp import Fsdp, FsdpConfig, HsdpConfig
from dtj_trainer.strategies.fsdp_scratch import FsdpScratch, FsdpScratchConfig

StrategyConfig = DdpConfig | FsdpConfig | HsdpConfig | DdpScratchConfig | FsdpScratchConfig | AutoConfig
KINDS: dict[str, type[StrategyConfig]] = {
    "auto": AutoConfig,
    "ddp": DdpConfig,
    "fsdp": FsdpConfig,
    "hsdp": HsdpConfig,
    "ddp_scratch": DdpScratchConfig,
    "fsdp_scratch": FsdpScratchConfig,
}


def make(config: StrategyConfig) -> Strategy:
    """The strategy of a config; `auto` must have been decided (auto.choose)."""
    match config:
        case DdpConfig():
            return Ddp(config)
        case FsdpConfig():
            return Fsdp(config)
        case DdpScratchConfig():
            return DdpScratch(config)
        case FsdpScratchConfig():
            return FsdpScratch(config)
        case AutoConfig():
            raise ValueError("auto is no strategy: call auto.choose first")


__all__ = [
    "KINDS", "AutoConfig", "Choice", "DdpConfig", "DdpScratchConfig", "Facts", "FsdpConfig", "FsdpScratchConfig", "HsdpConfig",
    "Strategy", "StrategyConfig", "blocks", "choose", "make", "tensor_bytes",
]  # fmt: skip
