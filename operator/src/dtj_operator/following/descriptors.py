"""The limit of open files: each running job has a connection."""

from __future__ import annotations

import resource

WANTED = 65536


def make_room() -> None:
    """Raises the soft limit as far as the hard one allows. Container runtimes often start with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
