"""The pods' folders in this machine's shared memory: a pod of a cluster takes its own along when it ends."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from dtj.local import processes
from dtj_contract import names

STALE_SECONDS = 3600.0
_ORDINAL_LENGTH = 5
"""Longer names end in the uid of a local pod, and not in the ordinal of a cluster's."""


def remove(job_uid: str, directory: Path = Path(names.SHM_DIR)) -> None:
    """Removes the folders of a run that has ended."""
    for folder in directory.iterdir():
        if folder.name.startswith(names.SNAPSHOT_FOLDER % (job_uid, "")):
            shutil.rmtree(folder, ignore_errors=True)


def remove_stale(directory: Path = Path(names.SHM_DIR)) -> None:
    """Removes the folders of local pods without a process, after an hour: their run and its reaper were killed."""
    living = {
        names.SNAPSHOT_FOLDER % tuple(env[names.ENV_LOCAL_POD].split("/"))
        for _, env in processes.tagged("")
        if env.get(names.ENV_LOCAL_POD, "").count("/") == 1
    }
    begin = (names.SNAPSHOT_FOLDER % ("", ""))[:-1]
    for folder in directory.iterdir():
        ours = folder.name.startswith(begin) and len(folder.name.rpartition("-")[2]) > _ORDINAL_LENGTH
        try:
            stale = ours and folder.name not in living and time.time() - folder.stat().st_mtime > STALE_SECONDS
        except OSError:
            continue
        if stale:
            shutil.rmtree(folder, ignore_errors=True)
