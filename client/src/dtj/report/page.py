"""The report as one HTML page that needs nothing from elsewhere. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dtj.report.content import Content
from dtj.report.draw import section_svg
from dtj.report.evidence import Evidence, Failure
from dtj.report.figure import Section
from dtj.report.shapes import clean, html
from dtj.report.svg import headline, recovery_text, svg
from dtj.report.verdict import Bound, Verdict

_CODE = re.compile(r"`([^`]*)`")


def page(shown: Content) -> str:
    """Returns the page: verdict, timeline, the training's sections, then recoveries and failures as text."""
    facts = shown.run.facts
    body = [
        f"<h1>{clean(facts.name)}</h1><p>{clean(headline(facts))}</p>",
        *(_verdict(shown.run.verdict) if shown.has_verdict else ()),
        svg(facts, shown.line),
        *_notes(facts),
        *(part for section in shown.sections for part in _section(section)),
        *_recoveries(facts),
        *_failures(facts),
    ]
    return html(f"{facts.name}: {facts.phase}", body)


def _verdict(found: Verdict) -> Iterator[str]:
    heading = found.bound.value[0].upper() + found.bound.value[1:]
    yield f'<div class="verdict"><h2>{clean(heading)}</h2><p>{_sentence(found.shown_by)}.</p>'
    yield "<p>What to try:</p><ul>" if found.bound != Bound.UNKNOWN else "<p>What would show more:</p><ul>"
    yield from (f"<li>{_sentence(one)}</li>" for one in found.advice)
    yield "</ul></div>"


def _sentence(text: str) -> str:
    """Returns HTML of a text whose field names stand in backticks."""
    return _CODE.sub(r"<code>\1</code>", clean(text[:1].upper() + text[1:]))


def _section(section: Section) -> Iterator[str]:
    yield f"<h2>{clean(section.heading)}</h2>"
    yield from (f"<p>{clean(text)}</p>" for text in section.texts)
    if section.figures:
        yield section_svg(section)
    if section.table:
        yield _table(section.table)


def _table(rows: Sequence[Sequence[str]]) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{clean(cell)}</{tag}>" for cell in cells) + "</tr>"

    head, *rest = rows
    return (
        f"<table><thead>{row(head, 'th')}</thead><tbody>{''.join(row(cells, 'td') for cells in rest)}</tbody></table>"
    )


def _notes(facts: Evidence) -> Iterator[str]:
    notes = []
    if len(facts.recoveries) < facts.restarts:
        notes.append(f"The status keeps the newest {len(facts.recoveries)} of {facts.restarts} recoveries.")
    if not facts.samples:
        notes.append("No logged steps were found: the loading of the first attempt is drawn as steps.")
    if facts.stragglers:
        notes.append(f"Slow ranks: {', '.join(one.label for one in facts.stragglers)}.")
    if facts.avoided:
        notes.append(f"Avoided nodes: {', '.join(facts.avoided)}.")
    yield from (f"<p>{clean(note)}</p>" for note in notes)


def _recoveries(facts: Evidence) -> Iterator[str]:
    if facts.recoveries:
        yield "<h2>Recoveries</h2><ul>"
        yield from (f"<li>{clean(recovery_text(one))}</li>" for one in facts.recoveries)
        yield "</ul>"


def _failures(facts: Evidence) -> Iterator[str]:
    if facts.failures:
        yield "<h2>Failures</h2>"
    for failure in facts.failures:
        yield f"<h3>{clean(_title(failure))}</h3><p>{clean(failure.message)}</p>"
        for name, text in (("Stack", failure.stack), ("Last lines", failure.log_tail)):
            if text.strip():
                yield f"<details><summary>{name}</summary><pre>{clean(text.rstrip())}</pre></details>"


def _title(failure: Failure) -> str:
    who = f"rank {failure.rank}" if failure.rank is not None else f"pod {failure.ordinal}"
    parts = [f"attempt {failure.attempt}", who, failure.place, failure.reason, failure.decision]
    return ", ".join(part for part in parts if part)
