"""The figures of a report as data, which the SVG and the PNG draw alike. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Point = tuple[float, float]
Format = Callable[[float], str]
"""Returns the text of a value on an axis or under the pointer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """The horizontal axis of a figure: seconds since the job's begin, or steps."""

    begin: float
    end: float
    is_time: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One line."""

    name: str
    colour: str
    """A name of `shapes.LIGHT`."""
    pieces: tuple[tuple[Point, ...], ...]
    """The line is broken between two attempts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """Curves on one axis."""

    title: str
    span: Span
    curves: tuple[Curve, ...]
    text: Format
    top: float | None = None
    """Upper end of the axis, 1.0 for shares; None: as the values need, logarithmic if they span a factor of 30."""
    unit: float = 1.0
    """Ticks are at round multiples of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """The parts of one column, from the bottom up."""

    begin: float
    end: float
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Stacked columns along the axis."""

    title: str
    span: Span
    parts: tuple[tuple[str, str], ...]
    """(name, colour) of each part of a column."""
    columns: tuple[Column, ...]
    text: Format


@dataclass(frozen=True, kw_only=True, slots=True)
class Bars:
    """Horizontal bars below each other, on one axis from 0."""

    title: str
    parts: tuple[tuple[str, str], ...]
    """(name, colour) of each part of a bar."""
    rows: tuple[tuple[str, tuple[float, ...]], ...]
    """(label, value of each part)"""
    text: Format


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One field of a heat map."""

    begin: float
    end: float
    heat: float
    """0 (as usual) to 1."""
    text: str
    """Under the pointer; within the cell where it has room and the map shows texts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Heat:
    """Rows of cells, which are the darker the more they stand out."""

    title: str
    span: Span | None
    """None: columns with names, each one unit wide, from 0."""
    columns: tuple[str, ...]
    """Names of the columns; empty along a span."""
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    """(label, cells)"""
    legend: str


Figure = Chart | Columns | Bars | Heat


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A heading, sentences, figures and a table."""

    heading: str
    texts: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    table: tuple[Sequence[str], ...] = ()
    """Rows of cells, the first of them the head."""
