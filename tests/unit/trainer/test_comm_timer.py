"""Waits of the strategies from scratch count as communication wherever a rank stands still."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dtj_trainer.distributed import comm_timer
from dtj_trainer.distributed.comm_timer import CommTimer
from dtj_trainer.strategies.scratch.flat_params import FlatParamGroup


class Clock:
    """Time that passes only in a collective."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Scatter:
    """A reduce-scatter on the CPU, which is done when its first wait returns."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._left = clock, seconds

    def wait(self) -> None:
        self._clock.now += self._left
        self._left = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(comm_timer, "time", clock)
    return clock


def scattering(clock: Clock, timer: CommTimer) -> FlatParamGroup:
    """Returns a group of no parameters whose gradient is on its way for 5 s; only a real group of ranks makes one."""
    group: Any = object.__new__(FlatParamGroup)
    group.comm_timer, group.full, group.parameters = timer, torch.zeros(2), []
    group.shard, group._offload = SimpleNamespace(grad=None), "none"
    group._scattering = Scatter(clock, 5.0), torch.ones(1), torch.ones(2)
    found: FlatParamGroup = group
    return found


@pytest.mark.parametrize("way", ["bounded", "plain"])
def test_wait_for_a_gradient_that_leaves_counts(way: str, clock: Clock) -> None:
    place: Any = SimpleNamespace(device=torch.device("cpu"), world_size=2)
    timer = CommTimer(place)
    group = scattering(clock, timer)
    with timer.counting():
        if way == "bounded":
            assert group.has_scattered(60.0)
        else:
            group.wait_scattered()
    timer.step_done()
    stats = timer.pop_stats()
    assert stats is not None
    assert (stats.exposed, stats.total) == (5.0, 5.0)
    assert torch.equal(group.shard.grad, torch.ones(1))
