"""The process of a local trial: `dtj run` of the trial's job.

The process outlives the tuner, so that a killed tuner costs its trials nothing. Its parent has locked the
trial's lock file and hands the descriptor over; the lock is free once this process has ended.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dtj.main import main

EXIT = "exit.txt"
"""File in the folder of a start with the exit code; missing if the process was killed."""
RUN = "run"
"""Folder of `dtj run` in the folder of a start."""


def run(lock: int, folder: Path, start: Path, volumes: Path) -> int:
    """Runs the job in `folder`. Returns the exit code of `dtj run`."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    code = main(
        ["run", str(folder / "job.yaml"), "--plain", "--run-dir", str(start / RUN), "--volumes-dir", str(volumes)]
    )
    sys.stdout.flush()
    new = start / f"{EXIT}.new"
    new.write_text(f"{code}\n")
    os.replace(new, start / EXIT)
    return code


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), *map(Path, sys.argv[2:])))
