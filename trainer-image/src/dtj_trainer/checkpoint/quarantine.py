"""Torn and incomplete checkpoints on the volume: set aside, and swept by a later attempt. Without torch."""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path

from dtj_contract import names

_LEFTOVER = re.compile(r"\.(?:incomplete|torn|universal)-step-\d{8,}-a(\d+)$")


def quarantine(torn: Path, attempt: int) -> Path:
    """Renames a torn checkpoint so that no load finds it and a person can.

    Does nothing if it is gone.
    """
    step = int(torn.name.rsplit("-", 1)[1])
    target = torn.with_name(names.CHECKPOINT_TORN % (step, attempt))
    shutil.rmtree(target, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):  # an earlier attempt's retention removed it
        torn.rename(target)
    return target


def sweep(directory: Path, attempt: int) -> None:
    """Removes the incomplete folders of earlier attempts, and torn folders older than the last attempt.

    A sweep before the first look for a checkpoint closes the fence. An older writer that had
    checked the lease just before it was taken can still rename its folder: either before the sweep,
    and then the checkpoint is found and used; or the sweep has renamed the folder, and the writer's
    rename fails. Nothing is therefore committed unseen after an attempt has begun.
    """
    for path in directory.iterdir():
        match = _LEFTOVER.fullmatch(path.name)
        if match and int(match[1]) < (attempt - 1 if path.name.startswith(".torn") else attempt):
            removed = path.with_name(names.CHECKPOINT_INCOMPLETE % (0, attempt))
            shutil.rmtree(removed, ignore_errors=True)
            with contextlib.suppress(FileNotFoundError):
                path.rename(removed)
                shutil.rmtree(removed, ignore_errors=True)
