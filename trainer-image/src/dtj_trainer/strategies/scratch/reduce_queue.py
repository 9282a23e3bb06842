"""Sends gradients to their owners in one order on every rank, whatever order they are complete in."""

from __future__ import annotations

from collections.abc import Iterable

from dtj_trainer.strategies.scratch.flat_params import FlatParamGroup

PATIENCE_SECONDS = 10.0
"""For which a backward waits, in host memory, until a gradient has left; in vain once in a run at most."""


class ReduceQueue:
    """Sends a gradient when it is complete and all before it have left."""

    def __init__(self, *, bounded: bool = True, gives_up: bool = False) -> None:
        """Begins empty.

        `bounded`: whole gradients of at most two groups are in memory, those in flight and those
        that are computed meanwhile. Otherwise any number is in flight.
        `gives_up`: also once a gradient has been in flight for `PATIENCE_SECONDS`. Another rank may
        use fewer parameters of the group, send it after its backward, and wait in its backward for
        weights of this rank.
        """
        self._gives_up = gives_up
        self._bounded = bounded
        self.pending: list[FlatParamGroup] = []
        """Groups whose gradients have not left, in their order."""
        self._complete = set[FlatParamGroup]()
        self._in_flight: FlatParamGroup | None = None

    def begin_backward(self, order: Iterable[FlatParamGroup]) -> None:
        """Expects the gradients of these groups, in this order."""
        self.pending, self._complete = list(order), set()

    def clear(self) -> None:
        """Expects no gradients."""
        self.pending, self._complete, self._in_flight = [], set(), None

    def add(self, flat_group: FlatParamGroup) -> None:
        """Takes a complete gradient, and sends all whose turn has come."""
        self._complete.add(flat_group)
        while self.pending and self.pending[0] in self._complete:
            leaving = self.pending.pop(0)
            self._complete.remove(leaving)
            leaving.scatter()
            before, self._in_flight = self._in_flight, leaving
            if self._bounded and before is not None and before is not leaving:
                if self._gives_up:
                    self._bounded = before.has_scattered(PATIENCE_SECONDS)
                else:
                    before.wait_scattered()
