"""Finds out when Python's random numbers are seeded: whatever is imported later may draw numbers that are known."""

from __future__ import annotations

import functools
import random
import sys
from typing import Any, Callable, FrozenSet, List, Optional, Sequence, Tuple, Union

_FUNCTIONS = ("seed", "setstate")


class Seeds:
    """Notes the first call of `random.seed` or `random.setstate` from its creation to `end`."""

    def __init__(self) -> None:
        self._before: Optional[FrozenSet[str]] = None
        self._own = {name: getattr(random, name) for name in _FUNCTIONS}
        self._noting = {name: _Noting(function, self._note) for name, function in self._own.items()}
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

    def _note(self) -> None:
        if self._before is None:
            self._before = frozenset(sys.modules)


class _Noting:
    """A function of `random` that notes its calls, and is in all else the function: a script may pickle it."""

    def __init__(self, function: Callable[..., Any], note: Callable[[], None]) -> None:
        self._function = function
        self._note = note
        functools.update_wrapper(self, function)

    def __call__(self, *given: Any, **named: Any) -> Any:
        self._note()
        return self._function(*given, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def __reduce__(self) -> Union[str, Tuple[Any, ...]]:
        return self._function.__reduce__()
