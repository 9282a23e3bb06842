"""Three calls for a loop of any framework: report progress, find the newest checkpoint, save (also on SIGTERM).

    from dtj_trainer import rank

    start, folder = rank.newest() or (0, None)
    for step in range(start + 1, steps + 1):
        ...                                              # one step
        rank.report(step, total=steps, loss=loss)
        rank.save(step, lambda folder: write(folder), last=step == steps)

The file is the standard library alone, imports nothing else of this project, and may be copied beside a
script whose image lacks this package. Without an agent, reports go nowhere and checkpoints to ./checkpoints.
Every rank must be able to write the state by itself, as with replicated weights. Frameworks whose
checkpoint needs all ranks save by their own means (`universal.py` does for DeepSpeed): use `report` alone there,
or `due`, `stop_asked`, `begin` and `complete`, of which `save` is made.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NEWS_SECONDS = 1.0  # for an agent that has not read the reports before
_PREFIX = "step-"
_ATTEMPT = re.compile(r"-a(\d+)(-r\d+)?$")
TERMINATED = 143
"""Exit code of a rank that SIGTERM has ended."""


def report(step: int, total: int | None = None, loss: float | None = None, **metrics: float) -> None:
    """Reports a finished step: `kubectl get dtj` and `dtj run` show it, and a hang is noticed by it."""
    found: dict[str, Any] = {"phase": "training", "step": int(step)}
    if total is not None:
        found["totalSteps"] = int(total)
    if loss is not None:
        found["loss"] = float(loss)
    if metrics:
        found["metrics"] = {name: float(value) for name, value in metrics.items()}
    _send(found)


def newest() -> tuple[int, Path] | None:
    """Returns the step and the folder of the newest checkpoint that `save` has completed; None without one."""
    if _rank() == 0:
        _sweep()
    found = _completed()
    if not found:
        return None
    step = int(found[-1].name[len(_PREFIX) :])
    _send({"phase": "loading", "resumedStep": step, "resumedFrom": "volume"})
    return step, found[-1]


def save(step: int, write: Callable[[Path], object], last: bool = False) -> None:
    """Saves after a step where that is due: on rank 0 every DTJ_CHECKPOINT_EVERY_STEPS (100) steps and at the
    `last`, and on each rank that got a SIGTERM, which then exits with 143.

    `write` gets an empty folder. A checkpoint is complete when that folder gets its name, so one that a kill
    interrupts is never loaded. Call `save` after every step: the first call installs the handler of SIGTERM,
    in place of one that the framework has installed before.
    """
    stopping = stop_asked()
    if (stopping or (_rank() == 0 and (last or due(step)))) and (folder := begin(step)):
        write(folder)
        complete(step, folder)
    if stopping:
        sys.exit(TERMINATED)


def due(step: int) -> bool:
    """Returns whether the job's checkpoint interval ends at this step."""
    return step % int(os.environ.get("DTJ_CHECKPOINT_EVERY_STEPS") or 100) == 0


def stop_asked() -> bool:
    """Returns whether this rank got a SIGTERM; the first call installs its handler."""
    _Stop.install()
    return _Stop.asked


def begin(step: int) -> Path | None:
    """Returns an empty folder to write this step's checkpoint to; None if the step is saved already."""
    if _place(step).exists():
        return None  # another rank has saved the same
    aside = _folder() / f".incomplete-{_place(step).name}-a{_attempt()}-r{_rank()}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    return aside


def complete(step: int, folder: Path) -> None:
    """Gives the folder of `begin` its name, which makes it a checkpoint, and removes old checkpoints.

    Exits with an error if a newer attempt has begun.
    """
    for path in [*folder.rglob("*"), folder]:
        _sync(path)
    if _is_fenced():
        shutil.rmtree(folder, ignore_errors=True)
        sys.exit(f"attempt {_attempt()} has ended: a newer one has begun, so step {step} is not saved")
    target = _place(step)
    try:
        folder.rename(target)
    except OSError:
        if not target.exists():
            raise
        shutil.rmtree(folder, ignore_errors=True)
        return
    _sync(target.parent)
    _send({"checkpoint": {"step": step, "path": str(target), "time": time.time()}})
    keep = int(os.environ.get("DTJ_CHECKPOINT_KEEP") or 3)
    for old in _completed()[:-keep]:
        shutil.rmtree(old, ignore_errors=True)


class _Stop:
    """The SIGTERM of this process."""

    asked = False
    installed = False

    @classmethod
    def install(cls) -> None:
        if not cls.installed:
            cls.installed = True
            signal.signal(signal.SIGTERM, cls._ask)

    @classmethod
    def _ask(cls, *_: object) -> None:
        cls.asked = True


def _place(step: int) -> Path:
    return _folder() / f"{_PREFIX}{step:08d}"


def _sweep() -> None:
    """Removes what killed writers of earlier attempts have left."""
    for path in _folder().glob(".*-" + _PREFIX + "*"):
        attempt = _ATTEMPT.search(path.name)
        if attempt and int(attempt[1]) < _attempt():
            shutil.rmtree(path, ignore_errors=True)


def _is_fenced() -> bool:
    """Returns whether the lease of the job's folder is of a newer attempt than this process is."""
    try:
        lease = (_folder() / "attempt").read_text()
    except OSError:
        return False  # there is none without an agent
    return lease.strip().isdigit() and int(lease) > _attempt()


def _completed() -> list[Path]:
    found = [path for path in _folder().glob(_PREFIX + "*") if path.name[len(_PREFIX) :].isdigit()]
    return sorted(found, key=lambda path: int(path.name[len(_PREFIX) :]))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _folder() -> Path:
    return Path(os.environ.get("DTJ_CHECKPOINT_DIR") or "checkpoints")


def _rank() -> int:
    return int(os.environ.get("RANK") or 0)


def _attempt() -> int:
    return int(os.environ.get("DTJ_ATTEMPT") or 1)


def _send(what: dict[str, Any]) -> None:
    address = os.environ.get("DTJ_AGENT_SOCKET")
    if not address:
        return
    datagram = json.dumps({"rank": _rank(), "attempt": _attempt(), **what}).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        # A step is reported again soon; news of a checkpoint is not.
        sock.settimeout(0 if "step" in what else NEWS_SECONDS)
        try:
            sock.sendto(datagram, address)
        except OSError:
            pass  # the agent is busy or gone: a report is worth no failure
