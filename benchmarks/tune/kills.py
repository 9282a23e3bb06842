"""The five kills of a sweep, each at a number of finished trials, and a storage that is locked in between."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable

from benchmarks.tune.sweep import SweepRun
from dtj.local import processes

LOCK_SECONDS = 10.0
TRANSACTION_SECONDS = 60.0
"""Time within which a write of the sweep is met."""
Disturbance = tuple[int, str, Callable[[SweepRun, random.Random], str | None]]


def kill_sweep(run: SweepRun, dice: random.Random) -> str | None:
    """Kills `dtj tune`. Returns what was met, as all of these do; None: nothing was, so try again."""
    assert run.process is not None
    time.sleep(dice.uniform(0, 1))
    run.process.kill()
    run.process.wait()
    return f"{len(run.jobs.active())} trials ran on"


def kill_worker(run: SweepRun, dice: random.Random) -> str | None:
    """Kills the rank of a trial that trains, which its agent starts again."""
    for number in dice.sample(run.jobs.active(), len(run.jobs.active())):
        status = run.statuses(number)[-1]
        step = ((status.get("status") or {}).get("progress") or {}).get("step")
        if not step:
            continue
        tag = f"{status['metadata']['uid']}/"
        for ranks in processes.workers(tag).values():
            if 0 in ranks and processes.kill(ranks[0], tag):
                return f"trial {number} at step {step}"
    return None


def kill_trial(run: SweepRun, dice: random.Random) -> str | None:
    """Kills `dtj run` of a trial, with which its agent and rank end."""
    active = run.jobs.active()
    if not active:
        return None
    number = dice.choice(active)
    os.kill(run.lock_pid(number), signal.SIGKILL)
    return f"trial {number}"


def kill_in_transaction(run: SweepRun, dice: random.Random) -> str | None:
    """Kills `dtj tune` in a transaction: stopped first, and killed if the storage's journal is there then."""
    assert run.process is not None
    journal = run.storage.with_name(run.storage.name + "-journal")
    end = time.monotonic() + TRANSACTION_SECONDS
    while time.monotonic() < end and run.process.poll() is None:
        if not journal.exists():
            continue  # a transaction takes milliseconds
        run.process.send_signal(signal.SIGSTOP)
        size = journal.stat().st_size if journal.exists() else 0
        if size:
            run.process.kill()
            run.process.wait()
            return f"its journal of {size} bytes was left"
        run.process.send_signal(signal.SIGCONT)
    return None


def kill_all(run: SweepRun, dice: random.Random) -> str | None:
    """Kills `dtj tune` and all trials at once, as the loss of the machine does."""
    assert run.process is not None
    run.process.kill()
    run.process.wait()
    active = run.jobs.active()
    for number in active:
        os.kill(run.lock_pid(number), signal.SIGKILL)
    return f"trials {', '.join(map(str, active))}"


def lock_storage(run: SweepRun, dice: random.Random) -> str | None:
    """Holds the storage's lock, so that nobody can read or write it."""
    with sqlite3.connect(run.storage, timeout=30, isolation_level=None) as storage:
        storage.execute("begin exclusive")
        time.sleep(LOCK_SECONDS)
        storage.execute("rollback")
    return f"{LOCK_SECONDS:g} s"


LOCKED = "storage locked"
PLAN: tuple[Disturbance, ...] = (
    (4, "sweep", kill_sweep),
    (10, "a trial's rank", kill_worker),
    (16, "a trial's `dtj run`", kill_trial),
    (20, LOCKED, lock_storage),
    (24, "sweep, in a transaction of the storage", kill_in_transaction),
    (31, "sweep and its four trials at once", kill_all),
)


class Disturber:
    """Carries out the plan, one disturbance after the other."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(f"kills/{seed}")
        self._left = list(PLAN)
        self.done: list[list[str | int]] = []
        """Finished trials, kind, and what was met."""

    def __call__(self, run: SweepRun, finished: int) -> None:
        assert run.process is not None
        if not self._left or finished < self._left[0][0] or run.process.poll() is not None:
            return
        _, kind, disturb = self._left[0]
        met = disturb(run, self._dice)
        if met is not None:
            self._left.pop(0)
            self.done.append([finished, kind, met])
