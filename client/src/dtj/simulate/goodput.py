"""Failures and checkpoints: the best interval, and the share of the time that remains for steps. Pure.

Sources: Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974): sqrt(2 d M).
Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
Systems 22 (2006): the complete wall clock time, and its optimum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Failures:
    """The rate of failures and their cost. Failures of nodes are independent, at a constant rate."""

    node_mtbf: float
    """Seconds between two failures of one node."""
    recovery: float
    """Seconds from a failure until steps are done again, without those that are done twice."""
    checkpoint: float
    """Seconds for which a checkpoint stops the steps."""
    interval: float | None = None
    """Seconds of steps between two checkpoints; None: the best."""


def young(checkpoint: float, mtbf: float) -> float:
    """Returns Young's interval in seconds."""
    return math.sqrt(2 * checkpoint * mtbf)


def daly(checkpoint: float, mtbf: float) -> float:
    """Returns Daly's higher-order interval in seconds: of steps, between the end of a checkpoint and the next."""
    if checkpoint >= 2 * mtbf:
        return mtbf
    ratio = checkpoint / (2 * mtbf)
    return young(checkpoint, mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - checkpoint


def goodput(interval: float, checkpoint: float, recovery: float, mtbf: float) -> float:
    """Returns the share of the time that is spent in steps which count.

    Daly's wall clock time is M e^(R/M) (e^((t+d)/M) - 1) for t seconds of steps; failures during a recovery are in it.
    """
    try:
        wall = mtbf * math.exp(recovery / mtbf) * math.expm1((interval + checkpoint) / mtbf)
    except OverflowError:
        return 0.0
    return interval / wall


def of_group(failures: Failures, nodes: int) -> tuple[float, float]:
    """Returns (goodput, seconds between two checkpoints) of a group that stops with each of its nodes."""
    mtbf = failures.node_mtbf / nodes
    interval = failures.interval or daly(failures.checkpoint, mtbf)
    return goodput(interval, failures.checkpoint, failures.recovery, mtbf), interval
