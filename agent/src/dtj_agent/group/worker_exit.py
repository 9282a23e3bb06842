"""The end of a worker, as its agent sees it. Pure."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple


class WorkerExit(NamedTuple):
    """A worker that has ended.

    `requested`: the agent's own signal ended it, so the end is no failure.
    """

    rank: int
    exit_code: int
    requested: bool
    log_tail: str
    oom: bool
    recorded: str = ""
    """The message in the worker's error file."""

    def evidence(self, room: int) -> Dict[str, Any]:
        """Returns the failure for the coordinator, with `room` characters of the worker's own text."""
        recorded = self.recorded[: room // 4]
        tail = self.log_tail[-(room - len(recorded)) :]
        evidence = {"rank": self.rank, "exitCode": self.exit_code, "logTail": tail, "oom": self.oom}
        return {**evidence, "recorded": recorded} if recorded else evidence
