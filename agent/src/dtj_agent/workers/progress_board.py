"""The reports of one pod's workers in one attempt, folded into one summary for the coordinator. Pure."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

from dtj_contract.worker_report import WorkerReport

MAX_PENDING_EVENTS = 20
# Not part of the latest values: each is passed on once.
NEWS = ("event", "resumedStep", "resumedFrom", "checkpoint")

Json = Dict[str, Any]


class ProgressBoard:
    """Folds the reports of one attempt, and returns each piece of news once.

    Events belong to no attempt: an event that a worker sends as it ends (its lease is lost, a save
    failed) may be the only explanation of what follows. `events`: those that the previous board
    still had.
    """

    def __init__(self, attempt: int, events: Sequence[Json] = ()) -> None:
        self.attempt = attempt
        self.urgent = False
        """Whether news must not wait: the state is loaded, the first step, a checkpoint, an event."""
        self._latest: Json = {}
        self._news: Json = {}
        self._events: List[Json] = list(events)
        self._stepped = self._trained = False
        self._dirty = False

    def add(self, report: WorkerReport) -> None:
        """Folds one report in. Values are those of the lowest rank that reports; milestones are any rank's."""
        if "event" in report and len(self._events) < MAX_PENDING_EVENTS:
            self._events.append(report["event"])
            self.urgent = True
        if report["attempt"] != self.attempt:
            return  # from a worker that is being stopped
        self._dirty = True
        if report["rank"] <= self._latest.get("rank", report["rank"]):
            values = {key: value for key, value in report.items() if key not in NEWS}
            self._latest.update(values)
        for key in NEWS[1:]:
            if key in report:
                self._news[key] = report[key]
                self.urgent = True
        if not self._trained and ("step" in report or report.get("phase") == "training"):
            self._trained = self.urgent = True
        if not self._stepped and "step" in report and report.get("phase") != "loading":
            self._stepped = self.urgent = True

    def take(self) -> Optional[Json]:
        """Returns the summary for the coordinator; None if nothing is new since the last call."""
        if not self._dirty:
            return None
        summary = {**self._latest, **self._news, "stepped": self._stepped}
        self._news = {}
        self._dirty = self.urgent = False
        return summary

    def take_events(self) -> List[Json]:
        """Returns the events since the last call, oldest first."""
        events, self._events, self.urgent = self._events, [], False
        return events

    @property
    def rank(self) -> Optional[int]:
        """The lowest rank that has reported."""
        return self._latest.get("rank")

    @property
    def step(self) -> Optional[int]:
        """The step that this rank reported last."""
        step = self._latest.get("step")
        return step if isinstance(step, int) else None
