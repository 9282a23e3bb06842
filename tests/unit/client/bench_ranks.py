"""Stands in for the ranks' interpreter of `dtj bench`: answers --facts, and ends each trial as its arm is called."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

ARMS = {"torchrun-ddp": True, "fsdp2": True, "lightning": False, "accelerate": False}
FACTS = {
    "python": "3.11",
    "torch": os.environ.get("TORCH", "2.13"),
    "device": "cpu",
    "gpus": 0,
    "strategies": ["ddp", "fsdp", "fails", "hangs", "killed", "silent"],
    "arms": ARMS,
    "models": {},
}


def main(flags: list[str]) -> int:
    if "--facts" in flags:
        print(json.dumps(FACTS))
        return 0
    given = {name: flags[flags.index(name) + 1] for name in ("--arm", "--batch", "--out")}
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    match given["--arm"]:
        case "fails":
            print("ConfigError: --batch: too many samples", file=sys.stderr)
            print("a later line", file=sys.stderr)
            return 93
        case "hangs":
            print("step 3", flush=True)
            signal.pause()
        case "killed" if rank == world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        case "killed":
            print("RuntimeError: connection closed by peer", file=sys.stderr)
            return 1
        case "silent":
            return 0
    if rank == 0:
        batch = int(given["--batch"])
        figures = {
            "arm": given["--arm"], "world": world, "step_seconds": 0.01 * world, "steps": [0.01 * world] * 2,
            "samples_per_second": batch / (0.01 * world), "memory_bytes": 1e9, "communication_share": 0.25,
            "communication_seconds": 0.004, "exposed_seconds": 0.002, "overlap": 0.5, "imbalance": 0.1, "loss": 1.0,
        }  # fmt: skip
        Path(given["--out"]).write_text(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
