"""Trials as local runs: a process for each, which outlives the tuner and is found by its lock file.

trials/0007/job.yaml    the job
trials/0007/lock        held by the process of the trial; contains its id
trials/0007/output.txt  output of `dtj run`
trials/0007/start-1/    the first start: exit code, and run/, the folder of `dtj run` with status and logs
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dtj import yaml_text
from dtj.errors import LocalRunError
from dtj.local import processes, volumes
from dtj.local.cluster import DEFAULT_GRACE_SECONDS
from dtj.tune.jobs import ended, last_step_time, measured
from dtj.tune.planner import Job, JobState
from dtj.tune.trial_process import EXIT, RUN
from dtj_core import api
from dtj_core.plan.model import Object

LOOK_SECONDS = 0.25
KILL_SECONDS = 60.0
"""Seconds beyond the pods' grace period after which a process that was asked to stop is killed."""
REJECTED = ("1", "2")
"""Exit codes of a `dtj run` that this machine or the job's file keeps from running."""
TAIL_BYTES = 4000
_START = re.compile(r"start-\d+")


class LocalTrialJobs:
    """Runs trials on this machine."""

    look_seconds = LOOK_SECONDS

    def __init__(self, folder: Path, metric: str) -> None:
        self._trials = folder / "trials"
        self._volumes = folder / "volumes"
        self._best = folder / "best"
        self._metric = metric
        self._children: list[subprocess.Popen[bytes]] = []
        self._stopped: dict[tuple[int, int], float] = {}
        """When each start of a trial was asked to stop."""
        self.kill_seconds = KILL_SECONDS

    def observe(self, numbers: Sequence[int]) -> Mapping[int, Job]:
        """Returns the jobs of these trials that were started."""
        self._children = [child for child in self._children if child.poll() is None]  # leave no zombies
        found = {number: self._observe(self._folder(number)) for number in numbers}
        return {number: job for number, job in found.items() if job is not None}

    def start(self, number: int, job: Object) -> None:
        """Starts a process for the trial unless one runs, and continues from the newest checkpoint."""
        folder = self._folder(number)
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder) as lock:
            if lock is None:
                return
            starts = _starts(folder)
            for start in starts:
                # The reaper of a run that was killed may still be at work.
                if uid := _status(start).get("metadata", {}).get("uid"):
                    processes.kill_all(f"{uid}/")
            _write(folder / "job.yaml", yaml_text.dump(job))
            upcoming = folder / f"start-{1 + len(starts)}"
            upcoming.mkdir()
            given = map(str, (lock, folder, upcoming, self._volumes))
            command = [sys.executable, "-m", "dtj.tune.trial_process", *given]
            with (folder / "output.txt").open("ab") as output:
                self._children.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        pass_fds=[lock],
                        start_new_session=True,  # Ctrl-C is for the tuner
                    )
                )

    def stop(self, number: int, job: Object) -> None:
        """Sends SIGTERM once to the process of the trial: `dtj run` then stops its workers gracefully.

        Later calls send SIGKILL once the workers' grace period is long over; its reaper then ends the workers.
        """
        folder = self._folder(number)
        start = number, len(_starts(folder))
        asked = self._stopped.get(start)
        if asked is not None:  # a second SIGTERM would stop the workers at once
            if time.monotonic() - asked > _grace_seconds(job) + self.kill_seconds:
                _signal(folder, signal.SIGKILL)
        elif _signal(folder, signal.SIGTERM):
            self._stopped[start] = time.monotonic()

    def export(self, number: int, job: Object, details: Mapping[str, object]) -> None:
        """Copies job, parameters and newest checkpoint of a trial to best/, which is replaced as a whole."""
        new, old = self._best.with_name("best.new"), self._best.with_name("best.old")
        for rest in (new, old):
            shutil.rmtree(rest, ignore_errors=True)
        new.mkdir(parents=True)
        metadata = job["metadata"]
        source = volumes.checkpoint_dir(
            api.validate(job).spec, metadata.get("namespace", "default"), metadata["name"], self._volumes
        )
        if source is not None and source.is_dir():
            step = volumes.newest_step(source)
            inner = source if step is None else source / f"step-{step:08d}"
            try:
                shutil.copytree(inner, new / "checkpoint", symlinks=True)
            except (OSError, shutil.Error) as error:
                raise LocalRunError(f"can't copy the best checkpoint from {inner}: {error}") from error
        (new / "job.yaml").write_text(yaml_text.dump(job))
        (new / "best.json").write_text(json.dumps(details, indent=2) + "\n")
        if self._best.exists():
            self._best.rename(old)
        new.rename(self._best)
        shutil.rmtree(old, ignore_errors=True)

    def active(self) -> list[int]:
        """Returns the trials whose process runs."""
        folders = self._trials.iterdir() if self._trials.is_dir() else ()
        return sorted(int(folder.name) for folder in folders if folder.name.isdecimal() and _is_held(folder))

    def _folder(self, number: int) -> Path:
        return self._trials / f"{number:04d}"

    def _observe(self, folder: Path) -> Job | None:
        # Look at the lock before the status, which is complete once the process has ended.
        is_active = _is_held(folder)
        starts = _starts(folder)
        if not starts:
            return None
        job = _status(starts[-1])
        step, value = measured(job, self._metric)
        if is_active:
            since = max(starts[-1].stat().st_mtime, last_step_time(job) or 0.0)
            return Job(state=JobState.ACTIVE, step=step, value=value, since=since)
        if (outcome := ended(job, self._metric)) is not None:
            return outcome
        if _text(starts[-1] / EXIT).strip() in REJECTED:
            return Job(state=JobState.FAILED, message=_last_error(folder / "output.txt"))
        return Job(state=JobState.STOPPED, step=step, value=value, fruitless=_fruitless(starts))


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[int | None]:
    """Locks a trial. Yields the descriptor, which a child may inherit with the lock; None if a process has the lock."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield lock
    except BlockingIOError:
        yield None
    finally:
        os.close(lock)


def _is_held(folder: Path) -> bool:
    try:
        lock = os.open(folder / "lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _pid(folder: Path) -> int | None:
    """Returns the id of the process that holds the lock, or None if there is none, or none has written it yet."""
    text = _text(folder / "lock").strip()
    return int(text) if text.isdecimal() and _is_held(folder) else None


def _signal(folder: Path, number: signal.Signals) -> bool:
    """Signals the process of a trial. Returns whether there is one."""
    pid = _pid(folder)
    if pid is None:
        return False
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # The lock is still held, so the handle is not that of another process with the same id.
        if not _is_held(folder):
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def _grace_seconds(job: Object) -> float:
    template = (job["spec"].get("template") or {}).get("spec") or {}
    return float(template.get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS))


def _starts(folder: Path) -> list[Path]:
    """Returns the folders of the trial's starts, the newest last."""
    found = [path for path in folder.iterdir() if _START.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(found, key=lambda path: int(path.name.removeprefix("start-")))


def _status(start: Path) -> dict[str, Any]:
    text = _text(start / RUN / "status.json")
    found: dict[str, Any] = json.loads(text) if text else {}
    return found


def _fruitless(starts: Sequence[Path]) -> int:
    """Returns how many of the last starts got no further than an earlier one."""
    steps = [((_status(start).get("status") or {}).get("progress") or {}).get("step", -1) for start in starts]
    furthest = max(steps)
    return len(steps) if furthest < 0 else len(steps) - 1 - steps.index(furthest)


def _last_error(path: Path) -> str:
    """Returns the last line of dtj's own in the output, which names the error, or the last line."""
    lines = [line for line in _text(path)[-TAIL_BYTES:].splitlines() if line.strip()]
    own = [line.removeprefix("dtj: ") for line in lines if line.startswith("dtj: ")]
    return (own or lines or ["no output"])[-1]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""


def _write(path: Path, text: str) -> None:
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    os.replace(new, path)
