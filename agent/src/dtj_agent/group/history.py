"""The memory of a job, which survives every restart. Pure.

The coordinator writes the history; every member keeps the newest copy and returns it in its hello.
The history therefore outlives each pod, pod 0 included, and there is no store that could be lost.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Optional, Tuple

from dtj_agent.group.members import Members
from dtj_contract import names
from dtj_contract.operator_message import GroupSize, RestartBudget

Json = Dict[str, Any]


LOSS_CAUSES = (
    names.Reason.AGENT_CRASHED,
    names.Reason.AGENT_TERMINATED,
    names.Reason.CONNECTION_LOST,
    names.Reason.POD_DELETED,
    names.Reason.POD_EVICTED,
    names.Reason.PREEMPTED,
    names.Reason.NODE_LOST,
)
"""The reasons that replace PodLost once the member is back, or the operator has looked at its pod."""


class History:
    """Holds JSON values. `revision` grows with each change that must reach the members at once."""

    def __init__(self) -> None:
        self.revision = 0
        self.attempt = 0
        """The greatest attempt that was ever started."""
        self.restarts = {"inPlace": 0, "pod": 0, "counted": 0}
        self.spent: List[float] = []
        """Unix times of the counted restarts that weigh on the budget."""
        self.losses: List[float] = []
        """Unix times of the connections that were lost since the last progress (restart_policy.py)."""
        self.pod_losses: List[float] = []
        """Unix times of the attempts that lost pods have broken since the last progress."""
        self.without_progress = 0
        """Counted restarts since the last progress."""
        self.charged = 0
        """The newest attempt whose end was charged: the next coordinator must not charge it again."""
        self.budget: Optional[RestartBudget] = None
        """The newest budget that the operator has handed over; None: none yet."""
        self.lived = 0.0
        """Seconds that the longest attempt lasted before it broke."""
        self.saved: Optional[float] = None
        """Modification time of the newest file that a script saved unreported; None: unknown."""
        self.furthest = 0
        """The greatest step that any attempt has done."""
        self.members = Members()
        """Of the last attempt; empty: none yet, or an older version started it."""
        self.size: Optional[GroupSize] = None
        """The newest size that the operator has handed over; None: none yet."""
        self.recoveries: List[Json] = []
        self.failures: List[Json] = []
        self.events: List[Json] = []
        self.event_id = 0
        self.progress: Optional[Json] = None
        self.checkpoint: Optional[Json] = None
        self.productive = 0.0
        """Seconds of training whose result was kept (by a checkpoint, or by the end)."""
        self.start_time: Optional[float] = None
        """When attempt 1 began, Unix seconds."""

    @property
    def progressed(self) -> bool:
        """Whether any attempt has ever done a step."""
        progress = self.progress or {}
        return bool(progress.get("step") or progress.get("optimizerSteps")) or self.checkpoint is not None

    @property
    def established(self) -> bool:
        """Whether an attempt has shown that the script works: by a step, or by its age without reports."""
        return self.progressed or self.lived > names.EARLY_SECONDS

    def ends_in_a_row(self, reason: str) -> int:
        """Returns how many of the last failures have this reason, without another one between."""
        count = 0
        for failure in reversed(self.failures):
            if failure.get("reason") != reason:
                break
            count += 1
        return count

    def event(self, type_: str, reason: str, message: str, wall: float) -> None:
        self.event_id += 1
        self.events.append({"type": type_, "reason": reason, "message": message, "time": wall, "id": self.event_id})
        del self.events[: -names.KEEP_EVENTS]
        self._changed()

    def failure(self, failure: Json) -> None:
        """Adds a failure.

        The failure of a member that was lost and is back replaces its loss, because the cause is
        known now.
        """
        replaced: Tuple[str, ...] = (names.Reason.POD_LOST,) if failure["reason"] in LOSS_CAUSES else ()
        if failure["reason"] == names.Reason.OOM_KILLED and failure.get("exitCode") is None:  # a whole container
            replaced = (names.Reason.POD_LOST, names.Reason.AGENT_CRASHED, names.Reason.OOM_KILLED)
        losses = [(failure["attempt"], failure["ordinal"], reason) for reason in replaced]
        keys = ("attempt", "ordinal", "reason")
        if failure.get("exitCode") is None:  # the next coordinator may list it again
            losses.append((failure["attempt"], failure["ordinal"], failure["reason"]))
        self.failures = [each for each in self.failures if tuple(each.get(key) for key in keys) not in losses]
        self.failures.append(failure)
        del self.failures[: -names.KEEP_FAILURES]
        self._changed()

    def lists(self, attempt: int, ordinal: int, reason: str) -> bool:
        """Returns whether a loss is listed: a failure without the exit code of a worker."""
        key = (attempt, ordinal, reason, None)
        return any(
            key == tuple(each.get(k) for k in ("attempt", "ordinal", "reason", "exitCode")) for each in self.failures
        )

    def recovery(self, recovery: Json) -> None:
        """Adds the recovery of an attempt, or replaces the earlier record of it."""
        if recovery in self.recoveries:
            return
        self.recoveries = [r for r in self.recoveries if r.get("attempt") != recovery["attempt"]] + [recovery]
        del self.recoveries[: -names.KEEP_RECOVERIES]
        self._changed()

    def _changed(self) -> None:
        """Drops the oldest events, then failures, until the rest fits a message.

        JSON makes up to 12 bytes of a character.
        """
        self.revision += 1
        while self.events and self._size() > names.MAX_HISTORY_BYTES:
            del self.events[0]
        while len(self.failures) > 1 and self._size() > names.MAX_HISTORY_BYTES:
            del self.failures[0]

    def _size(self) -> int:
        return len(json.dumps([self.events, self.failures, self.recoveries]))

    def live(self) -> Json:
        """Returns the part that changes all the time, which is small enough for every heartbeat."""
        return {"progress": self.progress, "checkpoint": self.checkpoint, "productiveSeconds": self.productive}

    def apply_live(self, live: Json) -> None:
        self.progress = _object(live.get("progress")) or self.progress
        self.furthest = max(self.furthest, int(number((self.progress or {}).get("step"))))
        self.checkpoint = _object(live.get("checkpoint")) or self.checkpoint
        self.productive = max(self.productive, number(live.get("productiveSeconds")))

    def to_json(self) -> Json:
        return {
            "revision": self.revision, "attempt": self.attempt, "restarts": dict(self.restarts),
            "spent": list(self.spent), "losses": list(self.losses), "furthest": self.furthest, "lived": self.lived,
            "saved": self.saved, "podLosses": list(self.pod_losses), "withoutProgress": self.without_progress,
            "charged": self.charged,
            "budget": None if self.budget is None else self.budget.to_json(),
            "members": list(self.members.bounds), "size": None if self.size is None else self.size.to_json(),
            "recoveries": list(self.recoveries), "failures": list(self.failures), "events": list(self.events),
            "eventId": self.event_id, "startTime": self.start_time, **self.live(),
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Json) -> History:
        """Returns the history in `data`.

        A missing field (another version wrote it, or none yet) takes its default.
        """
        history = cls()
        history.revision = int(number(data.get("revision")))
        history.attempt = int(number(data.get("attempt")))
        restarts = _object(data.get("restarts")) or {}
        history.restarts = {key: int(number(restarts.get(key))) for key in history.restarts}
        history.spent = [number(time) for time in _list(data.get("spent"))]
        history.losses = [number(time) for time in _list(data.get("losses"))]
        history.pod_losses = [number(time) for time in _list(data.get("podLosses"))]
        history.without_progress = int(number(data.get("withoutProgress")))
        history.charged = int(number(data.get("charged")))
        history.budget = RestartBudget.from_json(data.get("budget"))
        history.members = Members.from_json(data.get("members"))
        history.size = GroupSize.from_json(data.get("size"))
        history.lived = number(data.get("lived"))
        history.saved = None if data.get("saved") is None else number(data["saved"])
        history.furthest = int(number(data.get("furthest")))
        history.recoveries = _objects(data.get("recoveries"))[-names.KEEP_RECOVERIES :]
        history.failures = _objects(data.get("failures"))[-names.KEEP_FAILURES :]
        history.events = _objects(data.get("events"))[-names.KEEP_EVENTS :]
        history.event_id = int(number(data.get("eventId")))
        history.start_time = number(data.get("startTime")) or None
        history.apply_live(data)
        return history

    def copy(self) -> History:
        return History.from_json(self.to_json())

    @property
    def version(self) -> Tuple[int, int]:
        """Orders two copies: the later one holds everything.

        One coordinator writes at a time, and starts attempts on the newest copy.
        """
        return self.attempt, self.revision

    def newer_than(self, other: History) -> bool:
        return self.version > other.version

    def take_over(self, other: History, copied: History) -> None:
        """Adds the failures and events that were noted in `other` since it was `copied`."""
        revision = max(self.revision, other.revision)
        for failure in [failure for failure in other.failures if failure not in copied.failures]:
            self.failure(failure)
        known = [_without_id(event) for event in (*self.events, *copied.events)]
        for event in other.events:
            if _without_id(event) not in known:  # `self` may hold what a member was sent meanwhile
                self.event(event["type"], event["reason"], event["message"], event["time"])
        self.revision = revision + 1


def _without_id(event: Json) -> Json:
    return {key: value for key, value in event.items() if key != "id"}


def number(value: Any) -> float:
    """Returns a number that another agent sent; 0 for anything else.

    JSON may hold NaN, infinity or 400 digits; these become 0 too.
    """
    return float(value) if isinstance(value, (int, float)) and abs(value) < 2**53 else 0.0


def _list(value: Any) -> List[Any]:
    return value if isinstance(value, list) else []


def _objects(value: Any) -> List[Json]:
    return [item for item in _list(value) if isinstance(item, dict)]


def _object(value: Any) -> Optional[Json]:
    return value if isinstance(value, dict) else None
