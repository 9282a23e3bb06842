"""In which order the ranks call the blocks of a model (pure), so that their collectives pair up though a rank leaves one out.

Collectives of a group pair up by the order in which each rank begins them. A rank that leaves a block out (stochastic depth,
experts) would pair the weights of the next one with those of the block that others fetch: wrong weights where sizes are equal,
a wait for ever where numbers differ. So every rank fetches every block, in one order, whether it calls the block or not.
"""

from __future__ import annotations

from collections.abc import Sequence


class CallOrder:
    """The calls of one forward after the other. Blocks go by number."""

    def __init__(self, count: int) -> None:
        self.order = list(range(count))
        """In which blocks are fetched: as the model holds them, then as the first forward has called them that left none out."""
        self.even: list[int] = []
        """Blocks that all ranks have called, in that order."""
        self._learnt = False
        self._called: list[int] = []
        self._next = 0  # in the order

    def begin(self) -> None:
        """A forward begins."""
        self._called, self._next = [], 0

    def reach(self, number: int) -> list[int]:
        """Notes a call; returns the blocks that were passed over since the last one."""
        if number not in self._called:
            self._called.append(number)
        at = self.order.index(number)
        passed = self.order[self._next : at]
        self._next = max(self._next, at + 1)
        return passed

    def rest(self) -> list[int]:
        """Returns the blocks that the forward has not come to. It is over."""
        passed, self._next = self.order[self._next :], len(self.order)
        return passed

    def after(self, number: int) -> int | None:
        """Returns the block that follows in the order."""
        at = self.order.index(number) + 1
        return self.order[at] if at < len(self.order) else None

    def before(self, number: int) -> int | None:
        """Returns the block whose backward comes next, None if the ranks do not agree on one."""
        at = self.even.index(number) if number in self.even else 0
        return self.even[at - 1] if at else None

    def row(self) -> list[int]:
        """Returns the place of each block among this forward's calls, -1 if it was not called: what the ranks exchange."""
        return [self._called.index(number) if number in self._called else -1 for number in range(len(self.order))]

    def agree(self, rows: Sequence[Sequence[int]]) -> tuple[set[int], set[int]]:
        """Returns the blocks that all ranks have called and those that only some have."""
        columns = list(zip(*rows, strict=True))
        everywhere = {number for number, column in enumerate(columns) if min(column) >= 0}
        somewhere = {number for number, column in enumerate(columns) if max(column) >= 0} - everywhere
        if not self._learnt and len(everywhere) == len(self.order):
            self.order.sort(key=lambda number: rows[0][number])
            self._learnt = True
        return everywhere, somewhere
