"""Checks that all ranks see the same checkpoint folder.

An emptyDir or a hostPath on two nodes looks like one folder and is two.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from pathlib import Path

from dtj_trainer.distributed.process_group import Group
from dtj_trainer.errors import ConfigError

VISIBLE_SECONDS = 5.0
"""How long a client of a network file system may take to see a name that another client created."""


def check(directory: Path, group: Group) -> None:
    """Raises ConfigError on all ranks if one does not see rank 0's file in `directory`; a collective.

    A folder that can't be written to now is not checked: a save will report that.
    """
    if group.world_size == 1:
        return
    probe = directory / f".seen-by-all-{secrets.token_hex(8)}"
    if group.rank == 0:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            probe.touch()
        except OSError:
            probe = directory
    name = group.from_first(probe.name if probe != directory else None)
    try:
        blind = [
            rank for rank, seen in enumerate(group.all_objects(name is None or _appears(directory / name))) if not seen
        ]
    finally:
        if group.rank == 0 and probe != directory:
            with contextlib.suppress(OSError):
                probe.unlink()
    if blind:
        raise ConfigError(
            f"checkpoint folder {directory}: rank {blind[0]} does not see what rank 0 writes there, so no checkpoint "
            "could "
            "be loaded; write an absolute path on a volume that all pods mount (ReadWriteMany)"
        )


def _appears(path: Path) -> bool:
    deadline = time.monotonic() + VISIBLE_SECONDS
    while not _is_there(path):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        # A folder that this rank may not read, or a stale handle: all ranks are to learn of it.
        return False
