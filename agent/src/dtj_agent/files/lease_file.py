"""The attempt's lease on the checkpoint volume: once written, no worker of an earlier attempt commits a checkpoint."""

from __future__ import annotations

import os
import threading
from typing import Callable, Optional

from dtj_agent.net.loop import Loop
from dtj_contract import names

OnLease = Callable[[int, Optional[int], Optional[str]], None]


def raise_lease(folder: str, attempt: int) -> Optional[int]:
    """Writes `attempt` to the lease, or returns the lease's number if it is as great or greater.

    Blocks as long as the volume does. Raises OSError.

    Two coordinators may try the same number at the same time: a replaced pod 0 that is still alive
    has the same name, and both are process 1. One of them gets the number, and of two numbers the
    greater stays. Each number has a temporary file that only one coordinator can create. Its
    creator yields to greater numbers, deletes the files of smaller ones, and reads the lease once
    more before the rename.
    """
    path = os.path.join(folder, names.LEASE_FILE)
    os.makedirs(folder, exist_ok=True)
    held = _held(path)
    if held >= attempt:
        return held
    aside = "%s.%d" % (path, attempt)
    try:
        _create(aside, attempt)
        held = max(_clear(folder, attempt), _held(path))
        if held < attempt:
            os.replace(aside, path)
            _sync(folder)
            return None
    except FileExistsError:
        return attempt  # another coordinator writes it, or died while writing
    except FileNotFoundError:
        # Either a file server that failed over answers the repetition of a rename that it has
        # already done, or a greater number's coordinator has deleted our file.
        return None if _held(path) == attempt else attempt
    except OSError:
        _remove(aside)
        raise
    _remove(aside)
    return held


def _create(aside: str, attempt: int) -> None:
    with open(aside, "x") as file:
        file.write("%d\n" % attempt)
        file.flush()
        os.fsync(file.fileno())


def _clear(folder: str, attempt: int) -> int:
    """Deletes the temporary files of smaller numbers, so that none can be renamed.

    Returns the greatest number above `attempt` that has such a file; 0 if there is none.
    """
    aside = [name.partition(names.LEASE_FILE + ".")[2] for name in os.listdir(folder)]
    numbers = [int(number) for number in aside if number.isdigit()]
    for number in numbers:
        if number < attempt:
            _remove(os.path.join(folder, "%s.%d" % (names.LEASE_FILE, number)))
    return max([number for number in numbers if number > attempt], default=0)


def _held(path: str) -> int:
    """Returns the number in the lease file; 0 if there is none."""
    try:
        with open(path) as file:
            text = file.read(32).strip()
    except FileNotFoundError:
        return 0
    return int(text) if text.isdigit() else 0


def _sync(folder: str) -> None:
    """Flushes the rename itself to the volume."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(aside: str) -> None:
    try:
        os.unlink(aside)
    except OSError:
        # Renamed already, or the volume has stopped working: then this number is used up, and the
        # next one is requested.
        pass


def write_lease(loop: Loop, folder: Optional[str], attempt: int, callback: OnLease) -> None:
    """Writes the lease in a thread of its own, so that a dead volume blocks only that thread.

    Calls `callback(attempt, taken, error)` in the loop's thread when the volume has answered.
    """
    if folder is None:
        loop.soon(lambda: callback(attempt, None, None))
        return

    def work() -> None:
        taken, error = None, None
        try:
            taken = raise_lease(str(folder), attempt)
        except OSError as problem:
            error = "%s: %s" % (problem.filename or folder, problem.strerror)
        loop.soon(lambda: callback(attempt, taken, error))

    threading.Thread(target=work, name="dtj-lease", daemon=True).start()
