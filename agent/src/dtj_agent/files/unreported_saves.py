"""Detects checkpoints that a script saves without reporting them, by the age of the files in its folder.

Files that every attempt writes (settings, logs, TensorBoard, W&B) do not count as progress;
otherwise a script that crashes would be restarted for ever.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Callable, Deque, Tuple

from dtj_agent.net.loop import Loop
from dtj_contract import names

MAX_ENTRIES = 10_000
MAX_DEPTH = 5
NOT_SAVED = (
    ".log", ".txt", ".out", ".err", ".json", ".jsonl", ".yaml", ".yml", ".toml", ".csv", ".tsv", ".md", ".html", ".png",
    ".jpg", ".py", ".sh", ".lock", ".pid",
)  # fmt: skip
OURS = (names.LEASE_FILE, names.LOG_FOLDER)
WANDB_FOLDER = "wandb"
"""In WANDB_DIR. W&B writes to it as long as a run logs, whether or not the training saves."""


def newest(folder: str) -> float:
    """Returns the modification time of the newest file that may belong to a checkpoint; 0.0 if there is none.

    Raises OSError if a folder can't be read.
    """
    latest, left = 0.0, MAX_ENTRIES
    folders: Deque[Tuple[str, int]] = deque([(folder, 0)])
    while folders:
        path, depth = folders.popleft()
        with os.scandir(path) as entries:
            for entry in entries:
                left -= 1
                if left < 0:
                    return latest
                if depth == 0 and entry.name.split(".")[0] in OURS:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if depth < MAX_DEPTH and entry.name != WANDB_FOLDER and not entry.name.startswith("."):
                        folders.append((entry.path, depth + 1))
                elif _may_be_saved(entry.name):
                    latest = max(latest, _changed(entry))
    return latest


def _may_be_saved(name: str) -> bool:
    return not name.startswith(".") and "tfevents" not in name and not name.lower().endswith(NOT_SAVED)


def _changed(entry: "os.DirEntry[str]") -> float:
    try:
        return entry.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:  # deleted meanwhile
        return 0.0


class SavesWatch:
    """Scans the folder now and then in a thread of its own, so that a dead volume blocks only that thread."""

    def __init__(self, loop: Loop, folder: str, on_newest: Callable[[float], None]) -> None:
        self._loop = loop
        self._folder = folder
        self._on_newest = on_newest
        self._not_before = 0.0
        self._busy = False

    def look(self) -> None:
        """Begins a scan, unless one has just been done or still runs."""
        now = self._loop.clock()
        if not self._busy and now >= self._not_before:
            self._busy, self._not_before = True, now + names.SAVES_SECONDS
            try:
                threading.Thread(target=self._work, name="dtj-saves", daemon=True).start()
            except RuntimeError:  # the workers use up the pod's process limit
                self._busy = False

    def _work(self) -> None:
        try:
            found = newest(self._folder)
        except OSError:
            # The folder is being deleted, or the volume fails: nothing is known this time.
            found = -1.0
        self._loop.soon(lambda: self._done(found))

    def _done(self, found: float) -> None:
        self._busy = False
        if found >= 0:
            self._on_newest(found)
