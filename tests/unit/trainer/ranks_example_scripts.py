"""Ranks of test_example_scripts."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[3] / "examples"


def script(name: str, *arguments: str) -> None:
    """Runs a script of examples/ as torchrun starts it."""
    sys.argv = [name, *arguments]
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
