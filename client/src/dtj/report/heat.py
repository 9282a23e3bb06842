"""The heat maps of a report: each rank's own work over time, and each rank's sections. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dtj.quantities import step_time
from dtj.report.breakdown import Breakdown, Window, rank_means
from dtj.report.figure import Cell, Heat, Span

MOST_ROWS = 48
HOTTEST = 2.0
"""Of the median rank's own work: a rank that takes twice as long, or longer, is darkest."""


def own_work(groups: Sequence[Sequence[Window]], ranks: int, span: Span, begin: float) -> Heat:
    """Returns rank by time: own work in a step, compared with the median rank's at the same time.

    Where ranks share a row, the busiest one is shown, because one slow rank holds all others up.
    """
    shared = rank_rows(ranks)
    cells: list[list[Cell]] = [[] for _ in shared]
    for group in groups:
        own = _own(group, ranks)
        if not own:
            continue
        median = sorted(own)[(ranks - 1) // 2]
        since, until = group[0].begin - begin, group[-1].sample.time - begin
        for row, (first, last) in zip(cells, shared, strict=True):
            rank = max(range(first, last + 1), key=lambda each: own[each])
            ratio = own[rank] / median if median > 0 else 1.0
            text = f"rank {rank}: {step_time(own[rank])}, {ratio:.2f}x the median rank"
            heat = min(1.0, max(0.0, (ratio - 1) / (HOTTEST - 1)))
            row.append(Cell(begin=since, end=until, heat=heat, text=text))
    return Heat(
        title="own work in a step",
        span=span,
        columns=(),
        rows=tuple((_label(*pair), tuple(row)) for pair, row in zip(shared, cells, strict=True)),
        legend=f"1x the median rank (light) to {HOTTEST:g}x or more (dark)",
    )


def parts_by_rank(mean: Breakdown) -> Heat:
    """Returns rank by section of the mean step; the share of the step gives the colour."""
    shared = rank_rows(mean.ranks)
    rows = []
    for first, last in shared:
        values = [max(mean.by_rank[part][first : last + 1]) for part in mean.by_rank]
        rows.append((_label(first, last), tuple(
            Cell(begin=at, end=at + 1, heat=min(1.0, value / mean.step), text=step_time(value))
            for at, value in enumerate(values)
        )))  # fmt: skip
    return Heat(
        title="mean step of each rank",
        span=None,
        columns=tuple(part.value for part in mean.by_rank),
        rows=tuple(rows),
        legend="seconds of a step" + ("; of several ranks, the most" if len(shared) < mean.ranks else ""),
    )


def rank_rows(ranks: int) -> list[tuple[int, int]]:
    """Returns (first, last) rank of at most MOST_ROWS rows with the same number of ranks, but for the last row."""
    each = -(-ranks // MOST_ROWS)
    return [(first, min(first + each, ranks) - 1) for first in range(0, ranks, each)]


def _own(group: Sequence[Window], ranks: int) -> list[float]:
    data = rank_means("data_seconds", group, ranks)
    compute = rank_means("compute_seconds", group, ranks)
    return [a + b for a, b in zip(data, compute, strict=True)] if data and compute else []


def _label(first: int, last: int) -> str:
    return f"rank {first}" if first == last else f"ranks {first}-{last}"
