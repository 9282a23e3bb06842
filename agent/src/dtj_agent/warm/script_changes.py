"""Finds out who changes a variable: the script, or the import of an installed package."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any, ClassVar, Dict, List, Optional, Sequence, Set, Type

_INSTALLED = frozenset(("site-packages", "dist-packages"))
# The parts of torch have little to do with each other, and torch itself is always there.
_SPLIT = ("torch",)


def package(module: str) -> str:
    """Returns the package that is left out with a module."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] in _SPLIT else parts[0]


def is_installed(path: str) -> bool:
    """Returns whether a file is a third party's."""
    return not _INSTALLED.isdisjoint(path.split(os.sep))


def importing(users: Sequence[str] = ()) -> Optional[str]:
    """Returns the installed package whose module's body runs and has called this function, the innermost of them.

    `users`: packages that are the script's own although they are installed, as that of `-m MODULE`.
    """
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "<module>" and is_installed(frame.f_code.co_filename):
            name = package(str(frame.f_globals.get("__name__")))
            if name != "__main__" and name not in users:
                return name
        frame = frame.f_back
    return None


class ScriptChanges:
    """Notes the changes of os.environ from its creation to `end`. Costs nothing but at a change."""

    def __init__(self, users: Sequence[str]) -> None:
        self._environ = os.environ  # which the script may replace
        self._class: Type[Any] = os.environ.__class__
        noting = _NotingEnvironment
        noting.known, noting.removed, noting.users = dict(os.environ), {}, users
        noting.by_script, noting.by_import = set(), {}
        os.environ.__class__ = noting

    def end(self) -> Dict[str, List[str]]:
        """Returns the changed variables, each with the packages whose imports have set it; none: the script."""
        self._environ.__class__ = self._class
        noting = _NotingEnvironment
        for name, by in noting.removed.items():
            noting.by_import.setdefault(name, set()).add(by)
        by_script = noting.by_script.union(noting.known.keys() - self._environ.keys() - noting.removed.keys())
        return {**{name: sorted(by) for name, by in noting.by_import.items()}, **{name: [] for name in by_script}}


class _NotingEnvironment(type(os.environ)):  # type: ignore[misc]
    """os.environ of a worker until its first step."""

    known: ClassVar[Dict[str, str]] = {}
    """The variables that the worker began with, and those that imports have set since."""
    removed: ClassVar[Dict[str, str]] = {}
    """The variables that an import has removed, with its package."""
    by_script: ClassVar[Set[str]] = set()
    by_import: ClassVar[Dict[str, Set[str]]] = {}
    users: ClassVar[Sequence[str]] = ()

    def __setitem__(self, key: str, value: str) -> None:
        super().__setitem__(key, value)
        self.removed.pop(key, None)
        # A library may clear os.environ for a moment, and set all of it again.
        if value == self.known.get(key) or not isinstance(key, str):
            return
        by = importing(self.users)
        if by is None:
            self.by_script.add(key)
        else:
            self.by_import.setdefault(key, set()).add(by)
            self.known[key] = value

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        by = importing(self.users)
        if by is not None:
            self.removed[key] = by


_NotingEnvironment.__name__ = _NotingEnvironment.__qualname__ = type(os.environ).__name__
