"""Finds out when Python's random numbers are seeded: whatever is imported later may draw numbers that are known."""

from __future__ import annotations

import functools
import random
import sys
from typing import Any, Callable, FrozenSet, List, Optional, Sequence

_FUNCTIONS = ("seed", "setstate")


class Seeds:
    """Notes the first call of `random.seed` or `random.setstate` from its creation to `end`."""

    def __init__(self) -> None:
        self._before: Optional[FrozenSet[str]] = None
        self._own = {name: getattr(random, name) for name in _FUNCTIONS}
        self._noting = {name: self._note(function) for name, function in self._own.items()}
        for name, function in self._noting.items():
            setattr(random, name, function)

    @property
    def called(self) -> bool:
        """Whether anybody has seeded."""
        return self._before is not None

    def imported_after(self, modules: Sequence[str]) -> List[str]:
        """Returns those of `modules` that had not been imported at the first call."""
        return [] if self._before is None else [name for name in modules if name not in self._before]

    def end(self) -> None:
        """Takes the functions back, unless somebody has replaced them since."""
        for name, function in self._noting.items():
            if getattr(random, name, None) is function:
                setattr(random, name, self._own[name])

    def _note(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def noting(*given: Any, **named: Any) -> Any:
            if self._before is None:
                self._before = frozenset(sys.modules)
            return function(*given, **named)

        return noting
