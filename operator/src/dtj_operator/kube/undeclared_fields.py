"""Removes the status fields that a CRD older than the operator does not declare.

A server-side apply with such a field is rejected as a whole. Without this module no outcome, no
suspension and no deadline would be written where the operator was upgraded and its CRD was not,
or where the CRD was rolled back.
"""

from __future__ import annotations

import re
from typing import Any

Path = tuple[str, ...]
"""Field names below `status`; ITEM stands for each item of a list."""

ITEM = "[]"
_FIELD = re.compile(r"\.status((?:\.\w+|\[[^\]]*\])+): field not declared in schema")
_STEP = re.compile(r"\.(\w+)|\[")


def named(message: str) -> frozenset[Path]:
    """Returns the status fields that the API server's rejection names as undeclared."""
    return frozenset(tuple(step[1] or ITEM for step in _STEP.finditer(path)) for path in _FIELD.findall(message))


def without(status: Any, paths: frozenset[Path]) -> Any:
    """Returns a copy of `status` without these fields."""
    if not paths:
        return status
    if isinstance(status, dict):
        return {name: without(value, _below(paths, name)) for name, value in status.items() if (name,) not in paths}
    if isinstance(status, list | tuple):
        return [without(item, _below(paths, ITEM)) for item in status]
    return status


def _below(paths: frozenset[Path], name: str) -> frozenset[Path]:
    return frozenset(path[1:] for path in paths if path[0] == name and len(path) > 1)
