"""What the ranks of a test do, where it is not an example's main: importable by the forked processes."""

from __future__ import annotations

import runpy
from pathlib import Path

PLAIN = Path(__file__).parents[2] / "examples" / "torchrun_plain" / "train.py"


def plain(folder: str) -> None:
    """The plain torchrun script."""
    runpy.run_path(str(PLAIN), run_name="plain")["main"](folder)
