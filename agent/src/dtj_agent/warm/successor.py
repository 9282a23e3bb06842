"""A fork of the warm process that imports what the script has imported, and then serves in its place.

The warm process serves meanwhile, so no worker waits for these imports. A module that must not be in
a process that is forked costs one fork: its package is left out for good, and the next one is tried.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import List, Optional, Sequence

from dtj_agent.warm import background, child, preload
from dtj_agent.warm.import_report import ReportReader, ReportWriter, Verdict
from dtj_agent.warm.learned import Learned, known_arguments
from dtj_agent.warm.rank_variables import RankVariables
from dtj_agent.warm.script_changes import package
from dtj_agent.warm.watched_imports import WatchedImports

# The warm processes that may be replaced by a fork, each of which waits for the next.
GENERATIONS = 4
TRIES = 8  # in a row; each leaves one more package out


class Successor:
    """One try, as the warm process sees it. `fileno` is readable when there is news."""

    def __init__(self, pid: int, pipe: int, now: float) -> None:
        self.pid = pid
        self._pipe = pipe
        self._reports = ReportReader(pipe, now)

    @property
    def until(self) -> float:
        """The deadline of the import that runs."""
        return self._reports.until

    def fileno(self) -> int:
        return self._pipe

    def news(self, now: float) -> Optional[Verdict]:
        """Returns the verdict if there is one."""
        return self._reports.news(now)

    def end(self) -> None:
        """Kills and reaps it."""
        os.close(self._pipe)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def begin(
    found: Learned,
    skipped: Sequence[str],
    command: Sequence[str],
    variables: RankVariables,
    announce: Optional[preload.Send],
) -> Optional[Successor]:
    """Forks a successor; returns None in the successor, once it has imported everything and may serve.

    `announce`: see background.import_all.
    """
    reader, writer = os.pipe()
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(writer)
        return Successor(pid, reader, time.monotonic())
    os.close(reader)
    child.end_with_parent(parent)
    report, started, before = ReportWriter(writer), time.monotonic(), len(sys.modules)
    background.yield_processor(True)
    adjustment = background.die_first()
    with WatchedImports(False, found, variables, known_arguments(found, command)) as imports:
        bad = background.import_all(_modules(found, skipped), imports, command, report, announce)
    if bad is not None:
        name, obstacle = bad
        report.bad(name, obstacle.why, obstacle.by_rank)
        os._exit(0)
    background.die_as_before(adjustment)
    background.yield_processor(False)
    report.done(len(sys.modules) - before, time.monotonic() - started)
    os.close(writer)
    return None


def _modules(found: Learned, skipped: Sequence[str]) -> List[str]:
    left_out = {*found.left_out, *skipped}
    return [name for name in found.modules if name not in left_out and package(name) not in left_out]
