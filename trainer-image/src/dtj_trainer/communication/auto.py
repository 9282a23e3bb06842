"""Chooses the method of `auto` by trying: a few steps with each, timed on this link and this model.

A model of the link would have to know the cost of compression on this machine, and what the backward pass hides.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from dtj_trainer.communication.compressor import Place
from dtj_trainer.communication.config import Method

log = logging.getLogger(__name__)
CANDIDATES: tuple[Method, ...] = ("none", "bf16", "powersgd")
"""By what they change in the gradients, least first."""
SETTLING_STEPS = 3
"""The first steps of a run allocate, connect and compile."""
TRIED_STEPS = 6
"""Steps with each candidate; the first one is not counted, because it still waits for its predecessor's work."""
WORTH = 0.95
"""The share of a step's time that a candidate may take to replace one that changes less."""


class MethodChoice:
    """The method of each step: a fixed one after the warm-up, or the one that `auto` has chosen."""

    def __init__(self, method: Method, warmup_steps: int, group: Place) -> None:
        self._method = method
        self._warmup_steps = warmup_steps
        self._group = group
        self.candidates: tuple[Method, ...] = CANDIDATES
        self.chosen: Method | None = None if method == "auto" else method
        """The method for the rest of the run, once it is known."""
        self._first = 0
        """The step at which trying begins."""
        self._seconds: dict[Method, list[float]] = {}
        self._last: float | None = None

    def at(self, step: int) -> Method:
        """Returns the method of a step of the run."""
        if self.chosen is None:
            place = (step - self._first - SETTLING_STEPS) // TRIED_STEPS
            return self.candidates[place] if 0 <= place < len(self.candidates) else "none"
        if self.chosen in ("none", "fp16", "bf16") or step >= self._warmup_steps:
            return self.chosen
        # The warm-up may have half the bytes where the run will have far fewer.
        return "bf16" if self._method == "auto" else "none"

    def step_done(self, step: int) -> None:
        """Times a step, and chooses after the last one that is tried; a collective then."""
        if self.chosen is not None or self._group.world_size == 1:
            return
        now = time.perf_counter()
        tried = step - self._first - SETTLING_STEPS
        if self._last is not None and tried >= 0 and tried % TRIED_STEPS > 0:
            self._seconds.setdefault(self.at(step), []).append(now - self._last)
        self._last = now
        if tried + 1 >= TRIED_STEPS * len(self.candidates):
            self._choose()

    def _choose(self) -> None:
        mine = [statistics.median(self._seconds[each]) for each in self.candidates]
        slowest = torch.tensor(mine, dtype=torch.float64, device=self._group.device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        seconds = dict(zip(self.candidates, slowest.tolist(), strict=True))
        self.chosen = choose(seconds)
        if self._group.rank == 0:
            measured = ", ".join(f"{name} {1000 * took:.1f} ms" for name, took in seconds.items())
            log.info("communication auto: a step takes %s; the run continues with %s", measured, self.chosen)

    def state_dict(self) -> dict[str, Any]:
        """Returns the choice: a resumed run keeps it."""
        return {"chosen": self.chosen if self._method == "auto" else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads the choice. A run that was interrupted before it chose begins to try again."""
        if self._method == "auto" and state.get("chosen") in self.candidates:
            self.chosen = state["chosen"]
        self._first = state["steps"]


def choose(seconds: Mapping[Method, float]) -> Method:
    """Returns the candidate that changes the gradients least, of those that are not worth replacing.

    `seconds`: the time of a step with each candidate, in the order of `CANDIDATES`.
    """
    best, *others = seconds
    for other in others:
        if seconds[other] < WORTH * seconds[best]:
            best = other
    return best
