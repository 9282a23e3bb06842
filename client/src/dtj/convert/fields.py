"""Tables of a foreign job's fields, and the notes about what was not carried over as it was. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from dtj.convert.lexer import LITERAL_DOLLAR
from dtj.errors import InputError
from dtj_contract import names
from dtj_core.api.launcher_flags import MAX_RESTARTS, How
from dtj_core.plan.model import Object

MAX_SHOWN = 60
GANG = (
    "pods wait for each other at the rendezvous, and no scheduler admits them as a gang: bound the wait with"
    " spec.startupDeadlineSeconds"
)
MANAGED_BY = "the controller that it names does not know the new job: set spec.managedBy if another one shall run it"
REDIRECTED = "no shell reads the command any more: the output of each rank is in the pod's log, read it with dtj logs"


@dataclass(frozen=True)
class Field:
    """A known field of a foreign job.

    `path` may contain `[]` (any index), `*` (any key) and end with `.**` (everything below).
    """

    path: str
    how: How
    text: str
    """SAME and OTHER: where the value is in our job. Otherwise the reason, or what to do instead."""
    to: str = ""
    """Path in our job, for a value that is copied without a look at others."""
    carry: Callable[[Any], Any] = lambda value: value
    """Value at `to`; None leaves the field out."""


@dataclass(frozen=True)
class Note:
    """A remark about one place of the input."""

    how: How
    path: str
    text: str
    value: str = ""

    def __str__(self) -> str:
        shown = f" ({self.value})" if self.value else ""
        return f"{self.how.value}: {self.path}{shown}: {self.text}"


@dataclass
class Draft:
    """A job that is being converted, and the notes about it."""

    job: Object = field(
        default_factory=lambda: {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {}, "spec": {}}
    )
    notes: list[Note] = field(default_factory=list)

    def put(self, path: str, value: Any) -> None:
        """Sets the field at a dotted path of plain names."""
        *parents, last = path.split(".")
        at = self.job
        for name in parents:
            at = at.setdefault(name, {})
        at[last] = value

    def limit_restarts(self, limit: int) -> None:
        """Sets the restart budget, unless another limit of the file is larger."""
        held = self.job["spec"].get("restart", {}).get("maxRestarts")
        self.put(MAX_RESTARTS, limit if held is None else max(held, limit))

    def note(self, how: How, path: str, text: str, value: Any = "") -> None:
        """Adds a note, unless the same is there."""
        made = Note(how, path, text, shown(value))
        if made not in self.notes:
            self.notes.append(made)


def carry(table: Sequence[Field], source: Any, draft: Draft, prefix: str = "") -> None:
    """Copies the fields of `source` that have a place, and notes all that is not the same afterwards.

    `prefix` is the place of `source` in the file, in front of every path of a note.
    """
    for path, value in leaves(source):
        entry = next((one for one in table if _pattern(one.path).fullmatch(path)), None)
        if value in (None, {}, []) and (entry is None or entry.how is not How.REFUSED):
            continue  # nothing to carry
        if entry is None:
            draft.note(How.UNKNOWN, prefix + path, "this converter knows no such field; it was left out", value)
            continue
        carried = entry.carry(value) if entry.to else None
        if entry.to == MAX_RESTARTS and isinstance(carried, int):
            draft.limit_restarts(carried)
        elif carried is not None:
            draft.put(entry.to, carried)
        unchanged = carried == value and entry.to.rpartition(".")[2] == path.rpartition(".")[2]
        if entry.how is not How.SAME and not unchanged:
            place, below = _place(entry.path, path)
            draft.note(entry.how, prefix + place, entry.text, "" if below else value)


def as_object(value: Any, place: str) -> Object:
    """Returns an object of the input. Raises InputError for anything else."""
    if not isinstance(value, dict):
        raise InputError(f"{place}: required; write an object" if value is None else f"{place}: write an object")
    return value


def whole(value: Any, place: str, least: int) -> int:
    """Returns a number of the input. Raises InputError unless it is a whole number, and `least` or more."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{place}: write a whole number of {least} or more, not {value!r}")
    return value


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields path and value of everything that has no fields below it; a list of plain values is one."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}[{index}]")
    elif path:
        yield path, value


def shown(value: Any) -> str:
    """Returns a short text of a plain value; "" for any other."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        value = " ".join(map(str, value))
    if not isinstance(value, str | int | float):
        return ""
    text = " ".join(str(value).replace(LITERAL_DOLLAR, "$").split())
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


@cache
def _pattern(path: str) -> re.Pattern[str]:
    base, below = (path[:-3], r"(?:[.\[].*)?") if path.endswith(".**") else (path, "")
    text = re.escape(base).replace(r"\[\]", r"\[\d+\]").replace(r"\*", r"[^.\[]+")
    return re.compile(text + below, re.DOTALL)


def _place(pattern: str, path: str) -> tuple[str, bool]:
    """Returns the part of `path` that the entry names, and whether the value lies below it."""
    if not pattern.endswith(".**"):
        return path, False
    found = re.match(_pattern(pattern[:-3]).pattern, path)
    place = found[0] if found else path
    return place, place != path
