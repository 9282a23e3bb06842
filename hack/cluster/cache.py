"""A cache of builds outside the tree, keyed by recipe: another recipe gets another key, so no entry goes stale.

An entry is built in a temporary folder and renamed into place, so it is either complete or absent. A file lock per
entry keeps two runs from building the same entry twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hack.cluster.shell import ProvisionError, log


def root() -> Path:
    """Returns DTJ_CACHE_DIR, or a folder in the user's cache folder."""
    named = os.environ.get("DTJ_CACHE_DIR")
    if named:
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "dtj"


def key(*parts: object) -> str:
    """Returns a short name for a recipe.

    The parts must be plain data, because equal parts must have equal keys in any run on any machine.
    """
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@contextlib.contextmanager
def lock(name: str, *, timeout: float = 3600) -> Iterator[None]:
    """Holds a lock that one process at a time can have; the kernel frees it if that process dies."""
    path = root() / "locks" / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        deadline = time.monotonic() + timeout
        logged = False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ProvisionError(
                        f"another run has held {path} for {timeout:g} s; stop it and try again"
                    ) from None
                if not logged:
                    log(f"waiting for another run that holds {name}")
                    logged = True
                time.sleep(0.2)
        yield


def entry(kind: str, name: str, build: Callable[[Path], None]) -> Path:
    """Returns the folder <root>/<kind>/<name>; creates it with `build(folder)` if it is missing."""
    final = root() / kind / name
    if final.is_dir():
        return final
    with lock(f"{kind}-{name}"):
        if final.is_dir():
            return final
        aside = root() / "tmp" / f"{kind}-{name}"
        # This process holds the lock, so any files there were left by a run that died.
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        started = time.monotonic()
        try:
            build(aside)
            final.parent.mkdir(parents=True, exist_ok=True)
            aside.rename(final)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        log(f"built {kind}/{name} in {time.monotonic() - started:.0f} s")
    return final
