"""The vitals of running ranks: step, pauses, phase, and the state of the process. Pure.

A member sends the vitals of its ranks with a heartbeat, once a second; an agent of an older version
ignores the key `ranks`, and sends none.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional

from dtj_agent.group.history import number
from dtj_contract import names, worker_report

Json = Dict[str, Any]


class RankVitals(NamedTuple):
    """One rank at one moment. Times in seconds."""

    rank: int
    step: Optional[int] = None
    """The last step of this attempt; None before the first, or if the script's steps are unknown."""
    steps: int = 0
    """How many steps this attempt has done."""
    age: float = 0.0
    """Since that step was new, or an announced pause after it ended; without a step, since the attempt
    began."""
    phase: str = ""
    """The last announcement of the script (worker_report.PHASES)."""
    first: float = 0.0
    """From the attempt's beginning to the first step."""
    start: float = 0.0
    """The slowest such start of earlier attempts that the rank's agent knows."""
    usual: Optional[float] = None
    """Median of the recent steps."""
    longest: float = 0.0
    """The longest pause between two steps that nothing announced."""
    announces: bool = False
    """The script announces every pause."""
    stopped: float = 0.0
    """How long the process has been stopped by a signal (state T); 0 if it runs."""
    idle: float = 0.0
    """Since its processes last used processor time, a network or a disk."""
    disk: bool = False
    """Its processes wait for a disk, or read and write."""
    own: Optional[float] = None
    """The part of a step that is the rank's own work, without waits for others."""

    @property
    def slowest_start(self) -> float:
        """The slowest start of any attempt, this one included."""
        return max(self.first, self.start)

    def to_json(self) -> Json:
        """Returns the vitals without what is unknown or usual, which most ranks are."""
        row: Json = {"rank": self.rank, "age": round(self.age, 2)}
        for key, value in self._asdict().items():
            if key not in row and value != RankVitals._field_defaults[key]:
                row[key] = round(value, 4) if isinstance(value, float) else value
        return row


def parse(rows: Any) -> List[RankVitals]:
    """Returns the valid vitals in a message of another agent; unknown keys are ignored."""
    items = rows[: names.MAX_RANKS_OF_POD] if isinstance(rows, list) else []
    return [_parse(row) for row in items if isinstance(row, dict) and _count(row.get("rank")) is not None]


def _parse(row: Json) -> RankVitals:
    phase = row.get("phase")
    return RankVitals(
        rank=row["rank"],
        step=_count(row.get("step")),
        steps=_count(row.get("steps")) or 0,
        age=_seconds(row.get("age")) or 0.0,
        phase=phase if phase in worker_report.PHASES else "",
        first=_seconds(row.get("first")) or 0.0,
        start=_seconds(row.get("start")) or 0.0,
        usual=_seconds(row.get("usual")),
        longest=_seconds(row.get("longest")) or 0.0,
        announces=row.get("announces") is True,
        stopped=_seconds(row.get("stopped")) or 0.0,
        idle=_seconds(row.get("idle")) or 0.0,
        disk=row.get("disk") is True,
        own=_seconds(row.get("own")),
    )


def parse_stacks(stacks: Any) -> Dict[int, str]:
    """Returns the stacks in a message of another agent, by rank."""
    items = list(stacks.items())[: names.MAX_RANKS_OF_POD] if isinstance(stacks, dict) else []
    return {
        int(rank): text[: names.MAX_EVIDENCE_CHARS]
        for rank, text in items
        if isinstance(rank, str) and rank.isdigit() and len(rank) < 10 and isinstance(text, str)
    }


def _count(value: Any) -> Optional[int]:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
    return value if is_count else None


def _seconds(value: Any) -> Optional[float]:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return max(0.0, number(value))
