"""A worker that uses only the standard library, and starts in 30 ms because it needs no torch.

worker.py STEPS [--step-seconds S] [--hold-at STEP [--gate FILE]] [--fail-at STEP --exit-code N] [--child] [--deaf]
    [--saves]

It counts steps, reports them, and keeps its state like a trainer. Its `loss` is a function of the
step alone, so a resumed run must print what an undisturbed one prints.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", type=int)
    parser.add_argument("--step-seconds", type=float, default=0.005)
    parser.add_argument("--hold-at", type=int, help="in the first attempt, go no further: the test's fault will come")
    parser.add_argument("--gate", type=Path, help="in later attempts, hold there until this file exists")
    parser.add_argument("--fail-at", type=int)
    parser.add_argument("--exit-code", type=int, default=1)
    parser.add_argument(
        "--child", action="store_true", help="start a process that leaves the session and hears no SIGTERM"
    )
    parser.add_argument("--deaf", action="store_true", help="hear no SIGTERM")
    parser.add_argument("--saves", action="store_true", help="rank 0 saves the step that SIGTERM meets")
    args = parser.parse_args()
    stopping = threading.Event()
    if args.saves:
        signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    if args.deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    rank, attempt = int(os.environ["RANK"]), int(os.environ["DTJ_ATTEMPT"])
    if args.child:
        program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    folder = Path(os.environ["DTJ_CHECKPOINT_DIR"])
    every = int(os.environ["DTJ_CHECKPOINT_EVERY_STEPS"])
    step = newest(folder)
    report(rank, attempt, phase="training", step=step, totalSteps=args.steps, resumedStep=step)
    while step < args.steps:
        time.sleep(args.step_seconds)
        step += 1
        fields = {
            "phase": "training",
            "step": step,
            "totalSteps": args.steps,
            "loss": loss(step),
            "metrics": {"accuracy": 0.5},
        }
        if step == args.fail_at:
            print(f"rank {rank}: the data loader found a hole at step {step}", flush=True)
            return args.exit_code
        if rank == 0:
            print(f"step {step} loss {loss(step)!r}", flush=True)
            if step % every == 0 or stopping.is_set():
                fields["checkpoint"] = {"step": step, "path": str(save(folder, step, attempt)), "time": time.time()}
        report(rank, attempt, **fields)
        if stopping.is_set():
            return 128 + signal.SIGTERM
        while step == args.hold_at and (attempt == 1 or (args.gate and not args.gate.exists())):
            time.sleep(0.05)
            report(rank, attempt, **fields)  # the first one may have been dropped
    return 0


def loss(step: int) -> float:
    return 1.0 / (1 + step)


def newest(folder: Path) -> int:
    return max((int(path.parent.name.removeprefix("step-")) for path in folder.glob("step-*/manifest.json")), default=0)


def save(folder: Path, step: int, attempt: int) -> Path:
    aside, whole = folder / f".incomplete-step-{step:08d}-a{attempt}", folder / f"step-{step:08d}"
    aside.mkdir(parents=True)
    (aside / "manifest.json").write_text(json.dumps({"version": 1, "step": step, "attempt": attempt}))
    aside.rename(whole)
    return whole


def report(rank: int, attempt: int, **fields: object) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.setblocking(False)
        try:
            channel.sendto(
                json.dumps({"rank": rank, "attempt": attempt, **fields}).encode(), os.environ["DTJ_AGENT_SOCKET"]
            )
        except (BlockingIOError, FileNotFoundError, ConnectionRefusedError):
            pass  # the trainer drops a report, too, if the socket is busy


if __name__ == "__main__":
    sys.exit(main())
