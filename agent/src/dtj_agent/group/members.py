"""The ordinals of an attempt's members, as runs of neighbours: one run for most groups, however large. Pure."""

from __future__ import annotations

from typing import Any, Iterable, List, Tuple

MAX_ORDINAL = 65535
"""No group is larger, so that no message makes a list of any length."""


class Members:
    """`bounds`: first and last ordinal of each run, in order."""

    def __init__(self, bounds: Tuple[int, ...] = ()) -> None:
        self.bounds = bounds
        self._count = sum(last + 1 - first for first, last in self._runs())

    @classmethod
    def of(cls, ordinals: Iterable[int]) -> Members:
        """Returns the members with these ordinals, which are in order."""
        bounds: List[int] = []
        for ordinal in ordinals:
            if bounds and ordinal == bounds[-1] + 1:
                bounds[-1] = ordinal
            else:
                bounds += [ordinal, ordinal]
        return cls(tuple(bounds))

    @classmethod
    def from_json(cls, raw: Any) -> Members:
        """Returns the members whose bounds are in `raw`; none if one is wrong."""
        bounds = raw if isinstance(raw, list) and len(raw) % 2 == 0 else []
        least = 0
        for place, bound in enumerate(bounds):
            if isinstance(bound, bool) or not isinstance(bound, int) or not least <= bound <= MAX_ORDINAL:
                return cls()
            least = bound + place % 2
        return cls(tuple(bounds))

    def __len__(self) -> int:
        return self._count

    def ordinals(self) -> List[int]:
        """Returns all ordinals, in order."""
        return [ordinal for first, last in self._runs() for ordinal in range(first, last + 1)]

    def _runs(self) -> List[Tuple[int, int]]:
        return [(self.bounds[place], self.bounds[place + 1]) for place in range(0, len(self.bounds), 2)]
