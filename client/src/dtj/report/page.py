"""The report as one HTML page that needs nothing from elsewhere. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from dtj.report.evidence import Evidence, Failure
from dtj.report.shapes import clean, page_style
from dtj.report.svg import headline, recovery_text, svg
from dtj.report.timeline import Timeline


def page(facts: Evidence, line: Timeline) -> str:
    """Returns the page: the drawing, then recoveries and failures as text."""
    name = clean(facts.name)
    head = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        '<meta name="color-scheme" content="light dark"/>'
        f"<title>{name}: {clean(facts.phase)}</title><style>{page_style()}</style></head>"
    )
    body = [f"<h1>{name}</h1><p>{clean(headline(facts))}</p>", svg(facts, line), *_notes(facts), *_recoveries(facts),
            *_failures(facts)]  # fmt: skip
    return f"{head}\n<body><main>\n" + "\n".join(body) + "\n</main></body></html>\n"


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
