"""File descriptors for the links of a large group: a container's soft limit is 1024 in many clusters."""

from __future__ import annotations

import resource
from typing import Tuple

OWN_DESCRIPTORS = 256
"""Descriptors for everything but the members' links: workers, logs, status requests, calls."""
PER_MEMBER = 2
"""A member that dials again may have its old link for a while."""


def make_room(peers: int) -> str:
    """Raises the soft limit as far as `peers` need it. Returns a warning if the hard limit is too low, else "".

    The limit is not raised beyond the need, because the workers inherit it: a program that closes
    all descriptors that it may have takes seconds under a limit of a million.
    """
    needed = OWN_DESCRIPTORS + PER_MEMBER * peers
    raised, hard = new_limits(needed, resource.getrlimit(resource.RLIMIT_NOFILE))
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    if raised == resource.RLIM_INFINITY or raised >= needed:
        return ""
    text = "the limit of %d open files is too low for %d agents, which take %d: raise it in the container runtime"
    return text % (raised, peers, needed)


def new_limits(needed: int, limits: Tuple[int, int]) -> Tuple[int, int]:
    """Returns the soft and hard limit under which `needed` descriptors are had, as far as `limits` allow."""
    soft, hard = limits
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return soft, hard
    return (needed if hard == resource.RLIM_INFINITY else min(needed, hard)), hard
