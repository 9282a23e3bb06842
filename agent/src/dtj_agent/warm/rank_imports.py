"""Imports, in a process that becomes one rank, the packages that no process of all ranks can hold.

A package is of that kind if it reads the rank's variables while it is imported (Lightning), or starts a thread
(DeepSpeed). A standby has the variables of the rank that it will be, and is not forked any more.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

from dtj_agent.warm import background, child
from dtj_agent.warm.import_report import ReportWriter
from dtj_agent.warm.learned import Learned, known_arguments
from dtj_agent.warm.rank_variables import RankVariables
from dtj_agent.warm.script_changes import package
from dtj_agent.warm.watched_imports import WatchedImports


class Imported(NamedTuple):
    """The number of modules that a standby has imported, and the variables that this has changed; None: removed."""

    modules: int
    seconds: float
    changes: Dict[str, Optional[str]]


def modules(found: Learned) -> List[str]:
    """Returns the learned modules that each rank has to import itself, in their order."""
    return [name for name in found.modules if package(name) in found.by_rank]


def import_for(order: Mapping[str, Any], found: Learned, variables: RankVariables, report: ReportWriter) -> Imported:
    """Imports in this process what the rank of `order` will import.

    Ends the process if a module can't stay.
    """
    child.set_environment(order["kept"], {**order["own"], **order["changed"]})
    before, started, count = dict(os.environ), time.monotonic(), len(sys.modules)
    background.yield_processor(True)
    with WatchedImports(True, found, variables, known_arguments(found, order["command"])) as imports:
        bad = background.import_all(modules(found), imports, order["command"], report)
    if bad is not None:
        name, obstacle = bad
        report.bad(name, obstacle.why, by_rank=False)
        os._exit(0)
    background.yield_processor(False)
    sys.stdout.flush()
    sys.stderr.flush()
    changes: Dict[str, Optional[str]] = dict.fromkeys(before.keys() - os.environ.keys())
    changes.update({key: value for key, value in os.environ.items() if before.get(key) != value})
    return Imported(len(sys.modules) - count, time.monotonic() - started, changes)
