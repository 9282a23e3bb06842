"""The kernel's out-of-memory kills in this container: the oom_kill counter of its cgroup, version 1 or 2."""

from __future__ import annotations

from typing import List, Optional

ROOT = "/sys/fs/cgroup"


def oom_kills(root: str = ROOT, own: str = "/proc/self/cgroup") -> int:
    """Returns how many processes the kernel has killed in this memory cgroup so far; 0 where there is no counter."""
    for path in _candidates(root, own):
        count = _counter(path)
        if count is not None:
            return count
    return 0


def _candidates(root: str, own: str) -> List[str]:
    paths = []
    try:
        with open(own) as file:
            lines = file.read().splitlines()
    except OSError:
        lines = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            paths += ["%s/memory%s/memory.oom_control" % (root, path.rstrip("/")), root + "/memory/memory.oom_control"]
        elif number == "0" and not controllers:
            paths += ["%s%s/memory.events" % (root, path.rstrip("/")), root + "/memory.events"]
    return sorted(set(paths), key=paths.index)


def _counter(path: str) -> Optional[int]:
    try:
        with open(path) as file:
            for line in file:
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
    except (OSError, ValueError):
        pass  # the other cgroup version, or an old kernel
    return None
