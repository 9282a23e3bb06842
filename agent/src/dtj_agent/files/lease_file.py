"""The attempt's lease on the checkpoint volume: once written, no worker of an earlier attempt commits a checkpoint."""

from __future__ import annotations

import os
import threading
from typing import Callable, List, Optional

from dtj_agent.net.loop import Loop
from dtj_contract import names

OnLease = Callable[[int, Optional[int], Optional[str]], None]


class LeaseFolder:
    """The operations on the volume that a lease takes; each one blocks as long as the volume does."""

    def __init__(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        self._folder = folder
        self._path = os.path.join(folder, names.LEASE_FILE)

    def held(self) -> int:
        """Returns the number in the lease file; 0 if there is none."""
        try:
            with open(self._path) as file:
                text = file.read(32).strip()
        except FileNotFoundError:
            return 0
        return int(text) if text.isdigit() else 0

    def create(self, attempt: int) -> None:
        """Creates the temporary file of a number. Raises FileExistsError if there is one."""
        with open(self._aside(attempt), "x") as file:
            file.write("%d\n" % attempt)
            file.flush()
            os.fsync(file.fileno())

    def listed(self) -> List[int]:
        """Returns the numbers that have a temporary file."""
        aside = [name.partition(names.LEASE_FILE + ".")[2] for name in os.listdir(self._folder)]
        return [int(number) for number in aside if number.isdigit()]

    def rename(self, attempt: int) -> None:
        """Makes the temporary file of a number the lease, and flushes that to the volume."""
        os.replace(self._aside(attempt), self._path)
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, attempt: int) -> None:
        """Deletes the temporary file of a number if that is possible.

        Otherwise it is renamed already, or the volume has stopped working: then this number is used
        up, and the next one is requested.
        """
        try:
            os.unlink(self._aside(attempt))
        except OSError:
            pass

    def _aside(self, attempt: int) -> str:
        return "%s.%d" % (self._path, attempt)


def raise_lease(folder: str, attempt: int) -> Optional[int]:
    """Writes `attempt` to the lease of a folder, as `claim` does."""
    return claim(LeaseFolder(folder), attempt)


def claim(folder: LeaseFolder, attempt: int) -> Optional[int]:
    """Writes `attempt` to the lease, or returns the lease's number if it is as great or greater.

    Blocks as long as the volume does. Raises OSError.

    Two coordinators may try the same number at the same time: a replaced pod that is still alive
    has the name of the new one, and both are process 1. One of them gets the number, and of two numbers the
    greater stays. Each number has a temporary file that only one coordinator can create. Its
    creator yields to greater numbers, deletes the files of smaller ones, and reads the lease once
    more before the rename.

    Three at once, that is two pods that live on after their replacement, can lose a number: one
    creates again the file that a greater number's coordinator has deleted, just before its first
    creator renames it.
    """
    held = folder.held()
    if held >= attempt:
        return held
    try:
        # After an error here the file may be another coordinator's: it stays, and uses the number up.
        folder.create(attempt)
    except FileExistsError:
        return attempt  # another coordinator writes it, or died while writing
    try:
        held = max(_clear(folder, attempt), folder.held())
        if held < attempt:
            folder.rename(attempt)
            return None
    except FileNotFoundError:
        # Either a file server that failed over answers the repetition of a rename that it has
        # already done, or a greater number's coordinator has deleted our file.
        return None if folder.held() == attempt else attempt
    except OSError:
        folder.remove(attempt)
        raise
    folder.remove(attempt)
    return held


def _clear(folder: LeaseFolder, attempt: int) -> int:
    """Deletes the temporary files of smaller numbers, so that none can be renamed.

    Returns the greatest number above `attempt` that has such a file; 0 if there is none.
    """
    numbers = folder.listed()
    for number in numbers:
        if number < attempt:
            folder.remove(number)
    return max([number for number in numbers if number > attempt], default=0)


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
