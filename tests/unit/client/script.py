"""A script of depth 1, which uses no library of ours.

script.py STEPS [fail]

It keeps its own count and resumes from it, as a torchrun script does. Rank 0 writes. With `fail`
the first attempt ends with exit code 1, and the later ones never end.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path


def main() -> int:
    steps, fails = int(sys.argv[1]), sys.argv[2:] == ["fail"]
    own = Path(os.environ["DTJ_CHECKPOINT_DIR"], "own.txt")
    before = int(own.read_text()) if own.exists() else 0
    rank, attempt = os.environ["RANK"], os.environ["DTJ_ATTEMPT"]
    print(f"attempt {attempt} begins at {before}", flush=True)
    print(f"\rstep 1\rstep 2\rstep {steps}", flush=True)
    if rank == "0":
        own.write_text(str(before + steps))
    if fails and attempt == "1":
        print("RuntimeError: the table of samples is not whole", file=sys.stderr, flush=True)
        return 1
    if fails:
        time.sleep(600)
    return 0


if __name__ == "__main__":
    sys.exit(main())
