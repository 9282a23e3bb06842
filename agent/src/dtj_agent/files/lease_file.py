"""The attempt's lease on the checkpoint volume: from when it is written, a worker of an earlier attempt commits no checkpoint."""

from __future__ import annotations

import os
import threading
from typing import Callable, Optional

from dtj_agent.net.loop import Loop
from dtj_contract import names

OnLease = Callable[[int, Optional[int], Optional[str]], None]


def raise_lease(folder: str, attempt: int) -> Optional[int]:
    """Write `attempt`, or return what the file holds if that is as much or more. Blocks as long as the volume does; OSError.

    Of two coordinators that want the same number at the same time (a replaced pod 0 that lives on has the same name, and both
    are process 1) one gets it, and of two numbers the greater stays: the file aside is the number's, only one can make it; who
    has made it gives way to greater ones, takes smaller ones away, and looks once more.
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
        return attempt  # another is writing it, or has died over it
    except FileNotFoundError:
        # A server that failed over answers the repetition of a rename that it has done already.
        return None if _held(path) == attempt else attempt  # else a greater one has taken ours away
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
    """Take away what is aside for smaller numbers, so that it can't be renamed any more; return the greatest greater one."""
    aside = [name.partition(names.LEASE_FILE + ".")[2] for name in os.listdir(folder)]
    numbers = [int(number) for number in aside if number.isdigit()]
    for number in numbers:
        if number < attempt:
            _remove(os.path.join(folder, "%s.%d" % (names.LEASE_FILE, number)))
    return max([number for number in numbers if number > attempt], default=0)


def _held(path: str) -> int:
    """The number in the file; 0 if there is none."""
    try:
        with open(path) as file:
            text = file.read(32).strip()
    except FileNotFoundError:
        return 0
    return int(text) if text.isdigit() else 0


def _sync(folder: str) -> None:
    """The rename itself."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(aside: str) -> None:
    try:
        os.unlink(aside)
    except OSError:
        pass  # renamed already, or a volume that does nothing any more: then the number is spent, and the next is asked for


def write_lease(loop: Loop, folder: Optional[str], attempt: int, answer: OnLease) -> None:
    """`answer(attempt, taken, error)` in the loop's thread, when the volume has answered; a dead one costs this thread only."""
    if folder is None:
        loop.soon(lambda: answer(attempt, None, None))
        return

    def work() -> None:
        taken, error = None, None
        try:
            taken = raise_lease(str(folder), attempt)
        except OSError as problem:
            error = "%s: %s" % (problem.filename or folder, problem.strerror)
        loop.soon(lambda: answer(attempt, taken, error))

    threading.Thread(target=work, name="dtj-lease", daemon=True).start()
