"""SIGSTOP of a rank: the time until the group trains again, and whether the rank is named.

    .venv/bin/python -m benchmarks.hang [--trials 20] [--never-warm]

Two agents with two ranks each, as processes on loopback, run a plain torchrun script (DDP over gloo,
50 ms a step). Each trial stops a rank that is drawn by chance; the time ends with the first step of
the next attempt on rank 0.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dtj_contract import names
from tests.lib.waiting import wait_until
from tests.unit.agent.harness import Group, running

STEP_SECONDS = 0.05
SCRIPT = f"""
import os, time, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank, plan = dist.get_rank(), os.environ["PLAN"]
open(os.path.join(plan, "pid-%d" % rank), "w").write(str(os.getpid()))
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps = open(os.path.join(plan, "steps-%s-%d" % (os.environ["DTJ_ATTEMPT"], rank)), "a", buffering=1)
while True:
    time.sleep({STEP_SECONDS})
    optimizer.zero_grad()
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
    print(time.monotonic(), file=steps)
"""
RANKS = 4
LEAST_STEPS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--never-warm", action="store_true", help="start each rank with a new interpreter")
    flags = parser.parse_args()
    warm = names.WARM_NEVER if flags.never_warm else names.WARM_AUTO
    environ = {names.ENV_PROCESSES_PER_POD: "2", names.ENV_MAX_RESTARTS: "1000", names.ENV_WARM_WORKERS: warm}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(SCRIPT)
        with running(Path(folder) / "group", 2, [sys.executable, "-u", str(script)], **environ) as group:
            if not flags.never_warm:
                wait_until("warm processes", lambda: all(" is ready" in group.log(one) for one in (0, 1)))
            report([trial(group, number) for number in range(1, flags.trials + 1)])


def trial(group: Group, attempt: int) -> tuple[float, bool]:
    """Stops a rank of `attempt`. Returns the seconds until the next one trains, and whether the rank was named."""
    wait_until("steps", lambda: all(len(steps(group, attempt, rank)) >= LEAST_STEPS for rank in range(RANKS)))
    chosen = random.randrange(RANKS)
    stopped = time.monotonic()
    os.kill(group.worker(chosen), signal.SIGSTOP)
    first = wait_until("the next attempt's first step", lambda: steps(group, attempt + 1, 0), detail=group.logs)[0]
    failures: list[dict[str, Any]] = group.status()["failures"]
    named = [one["rank"] for one in failures if (one["attempt"], one["reason"]) == (attempt, "WorkerHung")]
    recovery = {one["attempt"]: one["seconds"] for one in group.status()["recoveries"]}.get(attempt + 1)
    print(f"attempt {attempt}: rank {chosen} stopped, named {named}, {first - stopped:.3f} s {recovery}", flush=True)
    return first - stopped, named == [chosen]


def steps(group: Group, attempt: int, rank: int) -> list[float]:
    path = group.plan / f"steps-{attempt}-{rank}"
    return [float(line) for line in path.read_text().splitlines()] if path.exists() else []


def report(trials: list[tuple[float, bool]]) -> None:
    seconds = sorted(seconds for seconds, _ in trials)
    named = sum(named for _, named in trials)
    print(
        f"named {named}/{len(trials)}; training again after {statistics.median(seconds):.2f} s (median),"
        f" {seconds[-1]:.2f} s (worst); target 3 x step + 2 s = {3 * STEP_SECONDS + 2:.2f} s"
    )


if __name__ == "__main__":
    main()
