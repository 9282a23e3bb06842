"""The rows of the table: medians and spread over the trials of each cell, failures, scaling efficiency. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dtj.bench.ledger import OK
from dtj.bench.plan import Cell

SAME_WORK = 1e-3
"""The largest distance of two losses, as a share, with which two arms count as doing the same work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """The distribution of one figure over trials."""

    median: float
    low: float
    """Lower quartile."""
    high: float
    """Upper quartile."""
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Returns the distribution of one value or more."""
        several = [*values, *values] if len(values) == 1 else values
        low, median, high = statistics.quantiles(several, n=4, method="inclusive")
        return cls(median=median, low=low, high=high, least=min(values), most=max(values))


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A cell and what its trials have measured. A trial that failed counts in `failures`, and in no figure."""

    cell: Cell
    trials: int
    """Trials that ended well."""
    failures: int
    reason: str
    """Of the first failure; "" without one."""
    cores: str
    """Of a rank: a core, a hardware thread, or a part of a core."""
    tcp: str
    """Congestion control on the link; "" without one."""
    step: Spread | None
    """Seconds, of the median steps of the trials; None without a trial."""
    rate: Spread | None
    """Samples/s over all ranks."""
    efficiency: float | None
    base: int | None
    """The ranks to which the efficiency is relative."""
    communication: float | None
    """Median share of a step in which a rank only waits for a collective."""
    overlap: float | None
    imbalance: float | None
    memory: float | None
    """Bytes, the most of any rank and trial."""
    loss: float | None
    """Median mean loss of the last step."""


def rows(cells: Sequence[Cell], records: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Returns a row for each cell, in their order, from the records of the trials."""
    found: dict[Cell, list[Mapping[str, Any]]] = {cell: [] for cell in cells}
    for record in records:
        cell = Cell(**{name: record[name] for name in ("scaling", "link", "batch", "world", "arm")})
        if cell in found:
            found[cell].append(record)
    rates = {
        cell: statistics.median(one["samples_per_second"] for one in good)
        for cell, all_of in found.items()
        if (good := [one for one in all_of if one["outcome"] == OK])
    }
    return [_row(cell, found[cell], rates) for cell in cells]


def efficiency(cell: Cell, rates: Mapping[Cell, float]) -> tuple[float, int] | None:
    """Returns the scaling efficiency of a cell, and the ranks of its base; None without the cell's own rate.

    The efficiency is the samples/s of one rank over the same of the base, which is the smallest world that was
    measured with the same arm, batch, link and scaling. `weak`: each rank has the same samples, so this is the step
    of the base over the step. `strong`: all ranks have the same samples together, so this is
    (ranks x step) of the base over (ranks x step). 1 is ideal, and the base has 1 by definition.
    """
    if cell not in rates:
        return None
    alike = [one for one in rates if (one.scaling, one.link, one.batch, one.arm)
             == (cell.scaling, cell.link, cell.batch, cell.arm)]  # fmt: skip
    base = min(alike, key=lambda one: one.world)
    return (rates[cell] / cell.world) / (rates[base] / base.world), base.world


def _row(cell: Cell, records: Sequence[Mapping[str, Any]], rates: Mapping[Cell, float]) -> Row:
    good = [one for one in records if one["outcome"] == OK]
    bad = [one for one in records if one["outcome"] != OK]
    share = efficiency(cell, rates)

    def values(name: str) -> list[float]:
        return [one[name] for one in good if one.get(name) is not None]

    def median(name: str) -> float | None:
        return statistics.median(values(name)) if values(name) else None

    return Row(
        cell=cell,
        trials=len(good),
        failures=len(bad),
        reason=str(bad[0].get("reason", "")) if bad else "",
        cores=next((str(one["cores"]) for one in records if "cores" in one), ""),
        tcp=next((str(one["tcp"]) for one in records if "tcp" in one), ""),
        step=Spread.of(values("step_seconds")) if good else None,
        rate=Spread.of(values("samples_per_second")) if good else None,
        efficiency=share[0] if share else None,
        base=share[1] if share else None,
        communication=median("communication_share"),
        overlap=median("overlap"),
        imbalance=median("imbalance"),
        memory=max(values("memory_bytes"), default=None),
        loss=median("loss"),
    )


def other_work(found: Sequence[Row]) -> list[str]:
    """Returns a sentence for each row whose loss is not that of the first arm of the same ranks and samples.

    All arms have the same model, seed and samples, so another loss shows that an arm does other work, and its time
    should not be compared.
    """
    first: dict[tuple[int, int], Row] = {}
    out = []
    for row in found:
        if row.loss is None:
            continue
        base = first.setdefault((row.cell.world, row.cell.global_batch), row)
        assert base.loss is not None
        if not abs(row.loss - base.loss) <= SAME_WORK * max(1.0, abs(base.loss)):
            out.append(
                f"{row.cell.phrase()}: loss {row.loss:.6g}, where {base.cell.arm} has {base.loss:.6g}: it does not do "
                "the same work."
            )
    return out
