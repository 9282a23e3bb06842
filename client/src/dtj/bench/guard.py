"""Cleans up after a bench whose dtj was killed: its ranks, its scratch folder, its network namespaces.

A process of its own, which waits for dtj's end.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from dtj.bench import link
from dtj.local import processes
from dtj.local.reaper import ProcessReaper


def guard(tag: str, scratch: Path) -> ProcessReaper:
    """Returns a context within which nothing of this process's bench outlives it."""
    return ProcessReaper(tag, scratch, link.owner(), module=__name__)


def main() -> None:
    """Waits for the end of standard input, then cleans up."""
    tag, scratch, owner = sys.argv[1:]
    sys.stdin.buffer.read()
    processes.kill_all(tag)
    link.remove(owner)
    shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
