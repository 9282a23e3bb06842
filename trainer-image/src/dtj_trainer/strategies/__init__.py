"""Strategies behind one small interface (base.Strategy); `make` builds the one that a config names."""

from __future__ import annotations

from dtj_trainer.strategies.base import Strategy
from dtj_trainer.strategies.ddp import Ddp, DdpConfig

StrategyConfig = DdpConfig


def make(config: StrategyConfig) -> Strategy:
    """The strategy of a config."""
    return Ddp(config)


__all__ = ["DdpConfig", "Strategy", "StrategyConfig", "make"]
