"""What is built once is kept outside the tree, by recipe: another recipe gets another key, so nothing goes stale.

An entry is built aside and renamed into place, so that it is there whole or not at all; a file lock per entry keeps
two runs from building the same thing twice.
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

from hack.cluster.shell import ClusterError, log


def root() -> Path:
    """DTJ_CACHE_DIR, else the user's cache folder."""
    named = os.environ.get("DTJ_CACHE_DIR")
    if named:
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "dtj"


def key(*parts: object) -> str:
    """A short name for a recipe. The parts must be plain data: equal data, equal key, in any run on any machine."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@contextlib.contextmanager
def lock(name: str, *, timeout: float = 3600) -> Iterator[None]:
    """Held by one process at a time; freed by the kernel if that process dies."""
    path = root() / "locks" / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        deadline = time.monotonic() + timeout
        told = False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ClusterError(f"another run has held {path} for {timeout:g} s; end it and try again") from None
                if not told:
                    log(f"waiting for another run that has {name}")
                    told = True
                time.sleep(0.2)
        yield


def entry(kind: str, name: str, build: Callable[[Path], None]) -> Path:
    """The folder <root>/<kind>/<name>, made by `build(folder)` if it is not there yet."""
    final = root() / kind / name
    if final.is_dir():
        return final
    with lock(f"{kind}-{name}"):
        if final.is_dir():
            return final
        aside = root() / "tmp" / f"{kind}-{name}"
        # The lock is ours, so what lies there was left by a run that died.
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
