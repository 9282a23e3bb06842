"""Cleans up after a local run whose dtj was killed: a separate process that waits for dtj's end.

The agents have the kernel send them SIGKILL when their parent dies, and so do their workers. A
process that a worker started in another session is found only by its tag, and the scratch
folder and the pods' shared memory have to be removed, too.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from dtj.local import processes, shared_memory

CLOSE_SECONDS = 10.0


class ProcessReaper:
    """While it is open, no process with this tag outlives dtj."""

    def __init__(self, tag: str, scratch_dir: Path, *more: str, module: str = __name__) -> None:
        """Starts the process.

        Args:
            tag: Of the processes that it kills.
            scratch_dir: The folder that it removes.
            more: Further arguments of `module`.
            module: Is run once dtj has ended, which closes its standard input.
        """
        command = [sys.executable, "-m", module, tag, str(scratch_dir), *more]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )  # the pipe closes when dtj ends, for whatever reason

    def __enter__(self) -> ProcessReaper:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:  # dtj has cleaned up itself
            self._process.kill()
            self._process.wait(CLOSE_SECONDS)


def main() -> None:
    """Waits for the end of standard input, then cleans up."""
    tag, scratch_dir = sys.argv[1:]
    shared_memory.remove_stale()
    sys.stdin.buffer.read()
    processes.kill_all(tag)
    shared_memory.remove(tag.rstrip("/"))
    shutil.rmtree(scratch_dir, ignore_errors=True)  # still there if dtj was killed


if __name__ == "__main__":
    main()
