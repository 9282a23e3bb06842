"""The report as one SVG: the verdict, the timeline, then the figures of each section. Pure."""

from __future__ import annotations

import textwrap

from dtj.report.content import Content
from dtj.report.draw import figures, style
from dtj.report.shapes import LEFT, document, label
from dtj.report.svg import description, svg, timeline_parts
from dtj.report.svg import style as timeline_style

LETTERS = 120
"""Letters of a line that fit into the drawing."""


def svg_file(shown: Content) -> str:
    """Returns the whole report as an SVG document without an XML declaration."""
    facts = shown.run.facts
    if not shown.sections:
        return svg(facts, shown.line)
    found = shown.run.verdict
    parts, y = timeline_parts(facts, shown.line)
    parts.append(label(LEFT, y + 14, found.bound, "title"))
    y += 14
    for line in textwrap.wrap(found.shown_by, LETTERS):
        y += 18
        parts.append(label(LEFT, y, line))
    y += 14
    for section in shown.sections:
        parts.append(label(LEFT, y + 18, section.heading, "title"))
        drawn, y = figures(section.figures, y + 30)
        parts += drawn
    return document("", f"Report of {facts.name}", description(facts), timeline_style() + style(), parts, y)
