"""Tests that Markdown links lead somewhere, and that prose has one sentence a line."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = {"docs/reference/api.md"}
PAGES = subprocess.run(
    ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
).stdout.split()
CODE_BLOCK = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
NEXT_SENTENCE = re.compile(r"[\w)`*\]][.!?]\**\)? +\**[A-Z]")


def anchors(page: Path) -> set[str]:
    """Returns the anchors that GitHub gives to the headings of a page."""
    headings = HEADING.findall(CODE_BLOCK.sub("", page.read_text()))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", PAGES)
def test_every_link_of_a_page_leads_to_a_file_and_heading(name: str) -> None:
    page = ROOT / name
    dead = []
    for path, anchor in LINK.findall(CODE_BLOCK.sub("", page.read_text())):
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(f"{path}#{anchor}")
    assert dead == []


@pytest.mark.parametrize("name", [name for name in PAGES if name not in GENERATED])
def test_prose_of_a_page_has_one_sentence_a_line(name: str) -> None:
    """Leaves out code, tables, headings and the tables' notes that the benchmarks write."""
    text = re.sub(r"<!-- ([\w-]+) -->.*?<!-- /\1 -->", "", (ROOT / name).read_text(), flags=re.DOTALL)
    crowded = []
    for line in CODE_BLOCK.sub("", text).splitlines():
        prose = re.sub(r"`[^`]*`|\]\([^)]*\)", "x", re.sub(r"^ *\d+\. ", "", line))
        if not line.startswith(("|", "#")) and NEXT_SENTENCE.search(prose):
            crowded.append(line)
    assert crowded == []
