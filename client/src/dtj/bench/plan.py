"""The grid of a bench: which trials there are, in which order, and with how many samples each. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from dtj.errors import InputError

Scaling = Literal["weak", "strong"]
NO_LINK, CLUSTER = "none", "cluster"
OURS, ALL = "ours", "all"
PODS, PODS_OF_KIND = "pods", "pods of kind"
"""The `cores` of a trial on a cluster."""
_RATE = re.compile(r"(\d+(?:\.\d+)?)([kmg])bit(?:/s)?", re.IGNORECASE)
_FACTORS = {"k": 1e3, "m": 1e6, "g": 1e9}
MOST_RANKS = 1024


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Cell:
    """A row of the table: some ranks that train in one way."""

    scaling: Scaling
    link: str
    """none, the rate of a shaped link, as `200mbit`, or cluster: each rank is a pod."""
    batch: int
    """Samples of a step: of each rank (weak), or of all ranks together (strong)."""
    world: int
    arm: str
    """A strategy of the Trainer, or another library's way."""

    @property
    def global_batch(self) -> int:
        """Samples of a step over all ranks."""
        return self.batch * self.world if self.scaling == "weak" else self.batch

    def phrase(self) -> str:
        """Returns the cell as a phrase."""
        ranks = f"{self.world} rank{'' if self.world == 1 else 's'}"
        where = "" if self.link == NO_LINK else f", {self.link}"
        return f"{self.arm}, {ranks}, {self.batch} samples{' each' if self.scaling == 'weak' else ''}{where}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One turn of a cell."""

    cell: Cell
    repeat: int
    """From 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """All cells of a bench, and how often each is measured."""

    scalings: Sequence[Scaling]
    links: Sequence[str]
    batches: Sequence[int]
    worlds: Sequence[int]
    arms: Sequence[str]
    repeats: int

    def cells(self) -> list[Cell]:
        """Returns the rows of the table in its order."""
        return [
            Cell(scaling=scaling, link=link, batch=batch, world=world, arm=arm)
            for scaling in self.scalings
            for link in self.links
            for batch in self.batches
            for world in self.worlds
            for arm in self.arms
        ]

    def trials(self) -> list[Trial]:
        """Returns the trials in the order in which they run.

        Each cell has its turn in each repeat, so that a busy minute of the machine disturbs one trial of many cells
        and not all trials of one cell. Each repeat begins with another arm. The trials of a link are consecutive.
        """
        cells = self.cells()
        return [
            Trial(cell=cell, repeat=repeat)
            for repeat in range(self.repeats)
            for link in self.links
            for cell in _turned([cell for cell in cells if cell.link == link], repeat)
        ]

    def check(self) -> None:
        """Raises InputError for a batch that ranks can't share, or a world that two nodes can't."""
        for world in self.worlds:
            for link in self.links:
                if is_shaped(link) and world > 1 and world % 2:
                    raise InputError(
                        f"--world {world}: --link {link} joins two nodes, which need as many ranks each; "
                        "write 1 or an even number"
                    )
            for batch in self.batches if "strong" in self.scalings else ():
                if batch % world:
                    raise InputError(
                        f"--batch {batch}: with --scaling strong all ranks share it evenly; write a multiple of "
                        f"--world {world}"
                    )


def _turned(cells: list[Cell], by: int) -> list[Cell]:
    at = by % len(cells) if cells else 0
    return cells[at:] + cells[:at]


def numbers(text: str, flag: str, most: int) -> list[int]:
    """Parses `1,2,4` into different numbers, the smallest first. Raises InputError that names the flag."""
    found = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= most for part in found):
        raise InputError(f"{flag} {text}: write whole numbers from 1 to {most}, such as {flag} 1,2,4")
    return sorted({int(part) for part in found})


def scalings(text: str) -> list[Scaling]:
    """Parses `weak`, `strong` or `weak,strong`. Raises InputError."""
    known: dict[str, Scaling] = {name: name for name in get_args(Scaling)}
    found = [part.strip() for part in text.split(",")]
    for part in found:
        if part not in known:
            raise InputError(f"--scaling {part}: write weak (--batch is of each rank), strong (of all ranks), or both")
    return [known[part] for part in dict.fromkeys(found)]


def links(text: str) -> list[str]:
    """Parses `none,200mbit,1gbit` or `cluster`. Raises InputError."""
    found = []
    for part in text.split(","):
        spelled = part.strip().lower().removesuffix("/s")
        if is_shaped(spelled) and (_RATE.fullmatch(spelled) is None or rate(spelled) <= 0):
            raise InputError(f"--link {part.strip()}: write none, a rate such as 200mbit or 1gbit, or cluster")
        found.append(spelled)
    if CLUSTER in found and len(set(found)) > 1:
        raise InputError(
            f"--link {text}: other cores and another torch are no other link; give cluster a bench and a "
            "folder (-o) of its own"
        )
    return list(dict.fromkeys(found))


def is_shaped(link: str) -> bool:
    """Returns whether a link needs network namespaces."""
    return link not in (NO_LINK, CLUSTER)


def rate(link: str) -> float:
    """Returns the bits per second of a link that `links` has parsed."""
    found = _RATE.fullmatch(link)
    if found is None:
        raise ValueError(f"{link} is no rate")
    return float(found[1]) * _FACTORS[found[2].lower()]


@dataclass(frozen=True, kw_only=True, slots=True)
class Arms:
    """The arms of a bench."""

    run: list[str]
    absent: list[str]
    """Those whose library is not installed."""


def arms(strategies: str, others: str, facts: Mapping[str, Any]) -> Arms:
    """Returns the arms that two flags ask for. Raises InputError for a name that is unknown or not installed.

    Args:
        strategies: `ddp,fsdp`: those of the Trainer.
        others: `all`, `ours` for none, or names. With `all`, an absent library is no error.
        facts: What `python -m dtj_trainer.measure bench --facts` has printed.
    """
    ours = list(dict.fromkeys(part.strip() for part in strategies.split(",") if part.strip()))
    for name in ours:
        if name not in facts["strategies"]:
            raise InputError(f"--strategy {name}: write one or more of {', '.join(facts['strategies'])}")
    known: Mapping[str, bool] = facts["arms"]
    if others == ALL:
        absent = [name for name, there in known.items() if not there]
        return Arms(run=[*ours, *(name for name, there in known.items() if there)], absent=absent)
    asked = [part.strip() for part in others.split(",") if part.strip() not in ("", OURS)]
    for name in asked:
        if name not in known:
            raise InputError(f"--arm {name}: write {ALL}, {OURS}, or one or more of {', '.join(known)}")
        if not known[name]:
            raise InputError(
                f"--arm {name}: {name} is not installed for the ranks' interpreter; install it, name another one by "
                "--python, or leave the arm out"
            )
    if not ours and not asked:
        raise InputError("--strategy: there is no arm left; write a strategy, such as ddp, or an --arm")
    return Arms(run=[*ours, *dict.fromkeys(asked)], absent=[])
