"""The content of a report of one run, or of one beside another: what the page, the SVG and the PNG all show. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dtj.report.breakdown import Breakdown, breakdown
from dtj.report.compare import comparison
from dtj.report.evidence import Evidence
from dtj.report.figure import Section
from dtj.report.sections import sections
from dtj.report.timeline import Timeline, timeline
from dtj.report.traces import TraceOverlap
from dtj.report.verdict import Verdict, verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run: its facts, its mean step, and what bounds it."""

    facts: Evidence
    traces: tuple[TraceOverlap, ...]
    mean: Breakdown | None
    verdict: Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """The content of a report."""

    run: Run
    line: Timeline
    other: Run | None
    """The run that it is compared with."""
    sections: tuple[Section, ...]
    has_verdict: bool = True

    def timeline_alone(self) -> Content:
        """Returns the timeline, recoveries and failures, without verdict and sections."""
        return replace(self, sections=(), has_verdict=False)


def run(facts: Evidence, traces: Sequence[TraceOverlap] = ()) -> Run:
    """Returns a run with what follows from its facts."""
    mean = breakdown(facts.samples)
    return Run(facts=facts, traces=tuple(traces), mean=mean, verdict=verdict(facts, mean, traces))


def content(shown: Run, other: Run | None = None) -> Content:
    """Returns the content of a report."""
    own = sections(shown.facts, shown.mean, shown.traces)
    beside = () if other is None else (
        comparison(shown.facts, shown.mean, shown.verdict, other.facts, other.mean, other.verdict),
    )  # fmt: skip
    return Content(run=shown, line=timeline(shown.facts), other=other, sections=(*beside, *own))
