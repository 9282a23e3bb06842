"""Stale locks of workers that were killed while they built a C++ extension (torch.utils.cpp_extension).

torch takes the lock by creating a file and releases it by deleting the file, so a worker that is
killed in between leaves every later attempt in this container waiting, silently and for ever. The
builder keeps the file open meanwhile, so a lock that no process holds open is stale.
"""

from __future__ import annotations

import os
from itertools import islice
from typing import Iterator, List, Mapping, Set

LOCK = "lock"
MAX_ENTRIES = 1000  # per folder
# On these file systems, processes of other machines may hold a file open unseen, and the volume may
# not answer at all.
REMOTE = (
    "nfs", "cifs", "smb", "ceph", "gluster", "lustre", "gpfs", "beegfs", "9p", "afs", "fuse", "virtiofs", "pvfs",
    "wekafs",
)  # fmt: skip


def folder(environ: Mapping[str, str]) -> str:
    """Returns the folder where a worker with this environment builds extensions; "" if that is unknown."""
    home = environ.get("HOME", "")
    cache = environ.get("XDG_CACHE_HOME") or (os.path.join(home, ".cache") if home else "")
    return environ.get("TORCH_EXTENSIONS_DIR") or (os.path.join(cache, "torch_extensions") if cache else "")


def remove_stale_locks(root: str, mounts: str = "/proc/self/mounts", processes: str = "/proc") -> List[str]:
    """Deletes the locks below `root` that no process holds open. Returns their paths. Call it while no worker runs."""
    if not root or not os.path.isabs(root) or _is_remote(os.path.normpath(root), mounts):
        return []
    locks = list(_locks(root))
    if not locks:
        return []
    held = _held_open(processes)
    removed = []
    for path in locks:
        try:
            found = os.lstat(path)
            if (found.st_dev, found.st_ino) not in held:
                os.unlink(path)
                removed.append(path)
        except OSError:
            continue  # deleted meanwhile, or no permission
    return removed


def _locks(root: str) -> Iterator[str]:
    """Yields each root/EXTENSION/lock, and root/PYTHON_CUDA/EXTENSION/lock for where torch has chosen the root."""
    for name in _folders(root):
        for below in [name, *_folders(name)]:
            path = os.path.join(below, LOCK)
            if os.path.isfile(path) and not os.path.islink(path):
                yield path


def _folders(path: str) -> List[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.path for entry in islice(entries, MAX_ENTRIES) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _held_open(processes: str) -> Set[object]:
    """Returns device and inode of every lock that a process here has open, as far as this user may look."""
    held: Set[object] = set()
    try:
        pids = [name for name in os.listdir(processes) if name.isdigit()]
    except OSError:
        return held
    for pid in pids:
        descriptors = os.path.join(processes, pid, "fd")
        try:
            names = os.listdir(descriptors)
        except OSError:
            continue
        for name in names:
            try:
                # Only locks are examined: stat of a file on a dead volume might never return.
                if os.readlink(os.path.join(descriptors, name)).endswith("/" + LOCK):
                    found = os.stat(os.path.join(descriptors, name))
                    held.add((found.st_dev, found.st_ino))
            except OSError:
                continue
    return held


def _is_remote(path: str, mounts: str) -> bool:
    """Returns whether `path` is on a network volume. Reads only the mount table: the volume itself might not answer."""
    best, kind = "", ""
    try:
        with open(mounts) as file:
            for line in file:
                point, type_ = line.split(" ")[1:3]
                point = point.replace("\\040", " ")
                if len(point) >= len(best) and (path + "/").startswith(point.rstrip("/") + "/"):
                    best, kind = point, type_
    except (OSError, ValueError):
        return True
    return kind.startswith(REMOTE)
