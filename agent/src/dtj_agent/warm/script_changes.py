"""The variables that a script sets in os.environ, as distinct from those that the imports of installed packages set."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any, ClassVar, Dict, Optional, Set, Type

_INSTALLED = frozenset(("site-packages", "dist-packages"))


def is_installed(path: str) -> bool:
    """Returns whether a file is a third party's."""
    return not _INSTALLED.isdisjoint(path.split(os.sep))


class ScriptChanges:
    """Notes the changes of os.environ from its creation to `end`. Costs nothing but at a change."""

    def __init__(self) -> None:
        self._class: Type[Any] = os.environ.__class__
        _NotingEnvironment.known, _NotingEnvironment.changed = dict(os.environ), set()
        os.environ.__class__ = _NotingEnvironment

    def end(self) -> Set[str]:
        """Returns the variables that the script has set to another value, or removed."""
        os.environ.__class__ = self._class
        return _NotingEnvironment.changed.union(_NotingEnvironment.known.keys() - os.environ.keys())


def _is_of_import() -> bool:
    """Returns whether the body of an installed module runs, which may have called what changes a variable now."""
    frame: Optional[FrameType] = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "<module>" and is_installed(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


class _NotingEnvironment(type(os.environ)):  # type: ignore[misc]
    """os.environ of a worker until its first step."""

    known: ClassVar[Dict[str, str]] = {}
    """The variables that the worker began with, and those that imports have set since."""
    changed: ClassVar[Set[str]] = set()

    def __setitem__(self, key: str, value: str) -> None:
        if _is_of_import():
            self.known[key] = value
        # A library may clear os.environ for a moment, and set all of it again.
        elif value != self.known.get(key):
            self.changed.add(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        if _is_of_import():
            self.known.pop(key, None)
        super().__delitem__(key)


_NotingEnvironment.__name__ = _NotingEnvironment.__qualname__ = type(os.environ).__name__
