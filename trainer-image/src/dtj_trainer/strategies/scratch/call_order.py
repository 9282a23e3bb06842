"""The order in which the ranks gather the blocks of a model, although a rank may skip one (pure).

Collectives of a group pair up by the order in which each rank begins them. A rank that skips a
block (stochastic depth, experts) would pair the weights of the next block with those of the block
that the other ranks gather: wrong weights where sizes are equal, a wait for ever where the numbers
differ. Therefore every rank gathers every block, in one order, whether it calls the block or not.
"""

from __future__ import annotations

from collections.abc import Sequence


class CallOrder:
    """The blocks that one forward after the other has called. Blocks are numbered."""

    def __init__(self, count: int) -> None:
        self.order = list(range(count))
        """Blocks in the order of gathering: as the model holds them, later as the first forward
        that skipped none called them."""
        self.even: list[int] = []
        """Blocks that all ranks have called, in that order."""
        self._learned = False
        self._called: list[int] = []
        self._next = 0  # an index into `order`

    def begin(self) -> None:
        """Begins a forward."""
        self._called, self._next = [], 0

    def reach(self, number: int) -> list[int]:
        """Records a call. Returns the blocks that were skipped since the last call."""
        if number not in self._called:
            self._called.append(number)
        at = self.order.index(number)
        skipped = self.order[self._next : at]
        self._next = max(self._next, at + 1)
        return skipped

    def rest(self) -> list[int]:
        """Ends a forward. Returns the blocks after its last call."""
        skipped, self._next = self.order[self._next :], len(self.order)
        return skipped

    def after(self, number: int) -> int | None:
        """Returns the block that follows in the order."""
        at = self.order.index(number) + 1
        return self.order[at] if at < len(self.order) else None

    def before(self, number: int) -> int | None:
        """Returns the block whose backward comes next, None if the ranks do not agree on one."""
        at = self.even.index(number) if number in self.even else 0
        return self.even[at - 1] if at else None

    def row(self) -> list[int]:
        """Returns the index of each block among this forward's calls (-1: not called), which the ranks exchange."""
        return [self._called.index(number) if number in self._called else -1 for number in range(len(self.order))]

    def agree(self, rows: Sequence[Sequence[int]]) -> tuple[set[int], set[int]]:
        """Returns (blocks that all ranks have called, blocks that only some ranks have called)."""
        columns = list(zip(*rows, strict=True))
        everywhere = {number for number, column in enumerate(columns) if min(column) >= 0}
        somewhere = {number for number, column in enumerate(columns) if max(column) >= 0} - everywhere
        if not self._learned and len(everywhere) == len(self.order):
            self.order.sort(key=lambda number: rows[0][number])
            self._learned = True
        return everywhere, somewhere
