"""Reads the directives of an sbatch script, and the options of srun. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from dtj.convert.directives import ALIASES, BARE, DIRECTIVES, OPTIONAL, SHORT
from dtj.convert.fields import Draft
from dtj.errors import InputError
from dtj_core.api.launcher_flags import How

GPU_OPTIONS = ("--gpus-per-node", "--gres", "--gpus", "--gpus-per-task")
_KNOWN = {entry.path: entry for entry in DIRECTIVES}
_COMMENT = re.compile(r"""("[^"]*"|'[^']*')|(?:^|(?<=\s))#.*""")
"""A quotation, as the first group, or a comment."""


@dataclass
class Allocation:
    """The directives of a script, by long name, each with its place in the file."""

    options: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)

    def number(self, name: str) -> int | None:
        """Returns the value of an option as a number; None if it is absent.

        Raises InputError if it is no number, or 0.
        """
        value = self.options.get(name)
        if value is None:
            return None
        if not value.isdecimal() or not int(value):
            raise InputError(f"{self.places[name]} {name}: write a whole number of 1 or more, not {value!r}")
        return int(value)

    @property
    def nodes(self) -> tuple[int, int] | None:
        """Least and greatest number of nodes; None if no option decides it."""
        value = self.options.get("--nodes")
        if value is None:
            return self._implied_nodes
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", value)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= low <= high:
            text = f"write a whole number of 1 or more in the file, or MIN-MAX, not {value!r}"
            raise InputError(f"{self.places['--nodes']} --nodes: {text}")
        return low, high

    @property
    def nodes_at(self) -> str:
        """Place of the option that decides the number of nodes."""
        found = (name for name in ("--nodes", "--ntasks", "--gpus") if name in self.places)
        return next((f"{self.places[name]} {name}" for name in found), "")

    @property
    def _implied_nodes(self) -> tuple[int, int] | None:
        """Number of nodes that a total and the share of each node decide."""
        for name, total, share in (
            ("--ntasks", self.number("--ntasks"), self.number("--ntasks-per-node")),
            ("--gpus", self._count("--gpus"), self._count("--gpus-per-node")),
        ):
            if total and share:
                if total > share and total % share:
                    raise InputError(f"{self.places[name]} {name}: {total} can't be divided by {name}-per-node {share}")
                nodes = max(1, total // share)
                return nodes, nodes
        return None

    @property
    def tasks(self) -> int | None:
        """Tasks of a node. Raises InputError if the nodes would have different numbers."""
        total, most, nodes = self.number("--ntasks"), self.number("--ntasks-per-node"), (self.nodes or (1, 1))[1]
        if total is None or (most and total % nodes):
            return most
        if total % nodes:
            raise InputError(f"{self.places['--ntasks']} --ntasks: {total} can't be divided by --nodes {nodes}")
        return min(total // nodes, most or total)

    @property
    def gpus(self) -> int | None:
        """GPUs of a node."""
        if self.gpus_from is None:
            return None
        name, count = self.gpus_from, self._count(self.gpus_from) or 0
        if name == "--gpus":
            nodes = (self.nodes or (1, 1))[1]
            if count % nodes:
                raise InputError(f"{self.places[name]} {name}: {count} can't be divided by --nodes {nodes}")
            return count // nodes
        return count * (self.tasks or 1) if name == "--gpus-per-task" else count

    @property
    def gpus_from(self) -> str | None:
        """Name of the option that decides the GPUs."""
        return next((name for name in GPU_OPTIONS if self._count(name) is not None), None)

    def _count(self, name: str) -> int | None:
        """Returns the GPUs of an option."""
        found = [gpu for part in self.options.get(name, "").split(",") if (gpu := _gpus_of(name, part))]
        return sum(count for _, count in found) if found else None


def _gpus_of(name: str, part: str) -> tuple[str, int] | None:
    """Returns model and number in `gpu:a100:4`, or in `a100:4` and `4` of a flag for GPUs alone; None for others."""
    kind, *rest = re.split("[:=]", part.partition("(")[0].removeprefix("gres/").removeprefix("gres:"))
    if not kind or (name == "--gres" and kind != "gpu"):
        return None
    parts = rest if kind == "gpu" else [kind, *rest]
    numbers = [int(one) for one in parts if one.isdecimal()]
    return next((one for one in parts if not one.isdecimal()), ""), numbers[-1] if numbers else 1


def read(text: str, draft: Draft) -> Allocation:
    """Returns the #SBATCH directives of a script. Notes each, and raises InputError for what can't be converted."""
    found = Allocation()
    begun = False
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r"#SBATCH\s+(.*)", line)
        begun = begun or bool(line.strip() and not line.startswith("#"))
        if match and begun:
            draft.note(
                How.NOT_CARRIED, f"line {number}", "sbatch reads no directive behind the first command", match[1]
            )
        elif match:
            _directive(match[1], f"line {number}", found, draft)
    return found


def _directive(text: str, where: str, into: Allocation, draft: Draft) -> None:
    try:
        tokens = shlex.split(_COMMENT.sub(lambda match: match[1] or "", text))
    except ValueError as error:
        raise InputError(f"{where}: {error}") from error
    if tokens[:1] in (["hetjob"], ["packjob"]):
        raise InputError(f"{where} {tokens[0]}: all pods of a job are the same: write a file for the part that trains")
    options, rest = split(tokens)
    take(options, where, into, draft)
    if rest:
        draft.note(How.UNKNOWN, where, "no directive that is known here; it was left out", shlex.join(rest))


def split(tokens: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Returns the options in front of a command by long name, and the command."""
    options: list[tuple[str, str]] = []
    tokens = list(tokens)
    place = 0
    while place < len(tokens) and tokens[place].startswith("-") and tokens[place] != "-":
        token = tokens[place]
        place += 1
        if token == "--":
            break
        if token.startswith("--"):
            name, equals, value = token.partition("=")
            name = name.replace("_", "-")  # as in --cpu_bind
            name = ALIASES.get(name, name)
        elif token[1] in SHORT:
            name, value = SHORT[token[1]], token[2:].removeprefix("=")
            equals = "=" if value else ""
            if value and name in BARE:  # more letters follow, as in -lu
                tokens.insert(place, f"-{value}")
                value = ""
        else:
            name, equals, value = token, "", ""
        if not equals and name not in BARE | OPTIONAL and place < len(tokens) and not tokens[place].startswith("-"):
            value = tokens[place]
            place += 1
        options.append((name, value))
    return options, tokens[place:]


def take(options: Sequence[tuple[str, str]], where: str, into: Allocation, draft: Draft) -> None:
    """Adds options to the allocation, and notes what becomes of each."""
    for name, value in options:
        entry = _KNOWN.get(name)
        if entry is None:
            draft.note(How.UNKNOWN, f"{where} {name}", "no directive that is known here; it was left out", value)
            continue
        if entry.how is How.REFUSED:
            raise InputError(f"{where} {name}={value}: {entry.text}")
        draft.note(entry.how, f"{where} {name}", entry.text, value)
        for part in value.split(",") if name in GPU_OPTIONS else ():
            if text := _beyond_number(name, part):
                draft.note(How.NOT_CARRIED, f"{where} {name}", text, value)
        into.options[name] = value
        into.places[name] = where


def _beyond_number(name: str, part: str) -> str:
    """Returns what to do about a model of GPU, or about another resource; "" for neither."""
    found = _gpus_of(name, part)
    if found is None:
        return "" if part in ("", "none") else f"request {part} as an extended resource in the container's resources"
    model, _ = found
    if re.match(r"\d+g\.", model):
        return f"request nvidia.com/mig-{model} in the container's resources instead of nvidia.com/gpu"
    return f"choose {model} with spec.template.spec.nodeSelector" if model else ""


def is_needed(name: str) -> bool:
    """Returns whether the job lacks something without the option."""
    return name not in _KNOWN or _KNOWN[name].how is not How.NOT_NEEDED
