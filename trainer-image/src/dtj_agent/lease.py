"""The attempt's lease on the checkpoint volume: from when it is written, a worker of an earlier attempt commits no checkpoint."""

from __future__ import annotations

import os
import threading
from typing import Callable, Optional

from dtj_agent import names
from dtj_agent.loop import Loop

Answer = Callable[[int, Optional[int], Optional[str]], None]


def raise_lease(folder: str, attempt: int) -> Optional[int]:
    """Write `attempt`, or return what the file holds if that is as much or more. Blocks as long as the volume does; OSError."""
    path = os.path.join(folder, names.LEASE_FILE)
    os.makedirs(folder, exist_ok=True)
    try:
        with open(path) as file:
            held = file.read(32).strip()
    except FileNotFoundError:
        held = ""
    if held.isdigit() and int(held) >= attempt:
        return int(held)
    aside = "%s.%d" % (path, os.getpid())
    with open(aside, "w") as file:
        file.write("%d\n" % attempt)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)  # the rename itself
    finally:
        os.close(descriptor)
    return None


def write(loop: Loop, folder: Optional[str], attempt: int, answer: Answer) -> None:
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
