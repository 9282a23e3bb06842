"""The reports of one pod's workers in one attempt, folded into one summary for the coordinator. Pure."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

from dtj_contract.worker_report import WorkerReport

MAX_PENDING_EVENTS = 20
# Not part of the latest values: each is passed on once.
NEWS = ("event", "resumedStep", "resumedFrom", "checkpoint")
# Keys that are not the lowest rank's values.
APART = (*NEWS, "optimizerSteps")

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
        self._counts: Dict[int, int] = {}
        """Optimizer steps by rank, which give no rank's report precedence over another's."""
        self._stepped = self._trained = False
        self._dirty = False

    def add(self, report: WorkerReport) -> None:
        """Folds one report in. Values are those of the lowest rank that reports; milestones are any rank's."""
        if "event" in report and len(self._events) < MAX_PENDING_EVENTS:
            self._events.append(report["event"])
            self.urgent = True
        if report["attempt"] != self.attempt:
            return  # from a worker that is being stopped
        if report.get("optimizerSteps"):
            self._counts[report["rank"]] = report["optimizerSteps"]
            self._dirty = True
            if not self._is_reporting and not self._stepped:
                self._trained = self._stepped = self.urgent = True
        if not report.keys() - {"rank", "attempt", "optimizerSteps"}:
            return
        self._dirty = True
        if report["rank"] <= self._latest.get("rank", report["rank"]):
            values = {key: value for key, value in report.items() if key not in APART}
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
        summary = {"rank": self.rank, **self._latest, **self._news, "stepped": self._stepped}
        if self._counts:
            summary["optimizerSteps"] = self._counts[min(self._counts)]
        self._news = {}
        self._dirty = self.urgent = False
        return summary

    def take_events(self) -> List[Json]:
        """Returns the events since the last call, oldest first."""
        events, self._events, self.urgent = self._events, [], False
        return events

    @property
    def rank(self) -> Optional[int]:
        """The lowest rank that has reported, or else whose optimizer steps are counted."""
        return self._latest.get("rank", min(self._counts, default=None))

    @property
    def _is_reporting(self) -> bool:
        """Whether the script reports its steps or phases itself, which counted steps do not overrule."""
        return "step" in self._latest or "phase" in self._latest

    @property
    def step(self) -> Optional[int]:
        """The step that this rank reported last."""
        step = self._latest.get("step")
        return step if isinstance(step, int) else None
