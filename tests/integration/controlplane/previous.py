"""`dtj-operator` of another tree: previous.py FOLDER FLAGS... Flags that it does not know yet are left out."""

from __future__ import annotations

import sys
from pathlib import Path

NEW_FLAGS = ("--leader-election",)
"""Flags of tests/integration/controlplane/support.py with a value, which the release before did not have."""


def known(flags: list[str]) -> list[str]:
    places = [place for place, flag in enumerate(flags) if flag in NEW_FLAGS]
    return [flag for place, flag in enumerate(flags) if place not in places and place - 1 not in places]


if __name__ == "__main__":
    folder = Path(sys.argv.pop(1))
    sys.argv[1:] = known(sys.argv[1:])
    sys.path[:0] = [str(path) for path in sorted(folder.glob("*/src"))]
    from dtj_operator import app

    assert Path(app.__file__).is_relative_to(folder), app.__file__
    sys.exit(app.main())
