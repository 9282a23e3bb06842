"""Ends what is left of a local run if dtj itself is killed, which dtj can't do then: a process that waits for its end.

The agents ask the kernel for SIGKILL when their parent dies, and so do their workers. What a worker has started in a
session of its own is found by its tag alone; and somebody has to remove the scratch folder.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from dtj.local import processes

CLOSE_SECONDS = 10.0


class ProcessReaper:
    """While it is open, nothing with this tag outlives this process."""

    def __init__(self, tag: str, scratch_dir: Path) -> None:
        command = [sys.executable, "-m", __name__, tag, str(scratch_dir)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )  # the pipe ends with this process, whatever ends it

    def __enter__(self) -> ProcessReaper:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:  # what it cleans up after has ended in order: it is not needed
            self._process.kill()
            self._process.wait(CLOSE_SECONDS)


def main() -> None:
    """Wait for the end of standard input, then clean up."""
    tag, scratch_dir = sys.argv[1:]
    sys.stdin.buffer.read()
    processes.kill_all(tag)
    shutil.rmtree(scratch_dir, ignore_errors=True)  # dtj has removed it, unless it was killed


if __name__ == "__main__":
    main()
