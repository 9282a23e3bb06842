"""Stamps the version of the file VERSION into every file that must repeat it, for `make generate`."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = ("contract", "core", "agent", "trainer-image", "operator", "client")
"""The distributions; each one follows its dependencies."""

PLACES = {
    **{f"{project}/pyproject.toml": r'^(version = ")(.+)(")$' for project in PROJECTS},
    "Dockerfile": r"^(ARG VERSION=)(.+)()$",
    "trainer-image/Dockerfile": r"^(ARG VERSION=)(.+)()$",
    "charts/dtj-operator/Chart.yaml": r'^((?:appV|v)ersion: "?)([^"\n]+)("?)$',
}


def version() -> str:
    """Returns the version of this tree."""
    return (ROOT / "VERSION").read_text().strip()


def stamped() -> dict[Path, str]:
    """Returns the text that each file of PLACES should have. Raises ValueError if a file has no place for a version."""
    texts = {}
    for name, pattern in PLACES.items():
        before = (ROOT / name).read_text("utf-8")
        texts[ROOT / name], count = re.subn(pattern, rf"\g<1>{version()}\g<3>", before, flags=re.MULTILINE)
        if not count:
            raise ValueError(f"{name}: no line matches {pattern}")
    return texts
