"""A volume in a dict, for the lease algorithm of files/lease_file.py: it fails and dies between two operations."""

from __future__ import annotations

import errno
from collections.abc import Callable

from dtj_agent.files.lease_file import LeaseFolder


class Died(BaseException):
    """The agent died between two operations on the volume; no code of the agent handles that."""


class DictFolder(LeaseFolder):
    """`before(operation)` is called before each operation, and may raise."""

    def __init__(self, before: Callable[[str], None] = lambda operation: None) -> None:
        self.lease = 0
        self.aside: set[int] = set()
        self.before = before

    def held(self) -> int:
        self.before("read")
        return self.lease

    def create(self, attempt: int) -> None:
        self.before("create")
        if attempt in self.aside:
            raise FileExistsError(errno.EEXIST, "File exists")
        self.aside.add(attempt)

    def listed(self) -> list[int]:
        self.before("list")
        return sorted(self.aside)

    def rename(self, attempt: int) -> None:
        self.before("rename")
        if attempt not in self.aside:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        self.aside.discard(attempt)
        self.lease = attempt

    def remove(self, attempt: int) -> None:
        self.before("remove")
        self.aside.discard(attempt)
