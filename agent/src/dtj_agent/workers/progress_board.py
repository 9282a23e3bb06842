"""What workers report: one JSON object a datagram. Checked here, once, so that everything behind is clean. Pure."""

from __future__ import annotations

import json
import math
from typing import Any, Dict, List, Optional, Sequence

PHASES = ("loading", "training", "saving", "done")
MAX_METRICS = 32
MAX_PENDING_EVENTS = 20
MAX_COUNT = 2**53  # what JSON readers agree on

Json = Dict[str, Any]


def parse(datagram: bytes) -> Optional[Json]:
    """A report with the keys that are right; what is wrong or unknown is left out. None: not a report at all."""
    try:
        raw = json.loads(datagram)
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, dict) or _count(raw.get("rank")) is None or _count(raw.get("attempt")) is None:
        return None
    report: Json = {"rank": raw["rank"], "attempt": raw["attempt"]}
    for key in ("step", "totalSteps", "resumedStep"):
        _put(report, key, _count(raw.get(key)))
    for key in ("loss", "samplesPerSecond"):
        _put(report, key, _number(raw.get(key)))
    _put(report, "phase", raw.get("phase") if raw.get("phase") in PHASES else None)
    if isinstance(raw.get("metrics"), dict):
        pairs = [(_text(name, 80), _number(value)) for name, value in list(raw["metrics"].items())[:MAX_METRICS]]
        report["metrics"] = {name: value for name, value in pairs if value is not None}
    _put(report, "checkpoint", _checkpoint(raw.get("checkpoint")))
    _put(report, "event", _event(raw.get("event")))
    return report


class ProgressBoard:
    """What one pod's workers have reported in one attempt, folded into what the coordinator is told next.

    Events are of no attempt: one that a worker sends as it ends (its lease is lost, a save failed) may be the only explanation
    of what follows. `events`: those that the board before this one still had.
    """

    def __init__(self, attempt: int, events: Sequence[Json] = ()) -> None:
        self.attempt = attempt
        self.urgent = False
        """Something that must not wait: the state is loaded, the first step, a checkpoint, an event."""
        self._latest: Json = {}
        self._news: Json = {}
        self._events: List[Json] = list(events)
        self._stepped = self._trained = False
        self._dirty = False

    def add(self, report: Json) -> None:
        """Fold one report in. Values are those of the lowest rank that reports; milestones are anyone's."""
        if "event" in report and len(self._events) < MAX_PENDING_EVENTS:
            self._events.append(report["event"])
            self.urgent = True
        if report["attempt"] != self.attempt:
            return  # of a worker that is being stopped
        self._dirty = True
        if report["rank"] <= self._latest.get("rank", report["rank"]):
            values = {key: value for key, value in report.items() if key not in ("event", "checkpoint", "resumedStep")}
            self._latest.update(values)
        for key in ("resumedStep", "checkpoint"):
            if key in report:
                self._news[key] = report[key]
                self.urgent = True
        if not self._trained and ("step" in report or report.get("phase") == "training"):
            self._trained = self.urgent = True
        if not self._stepped and "step" in report and report.get("phase") != "loading":
            self._stepped = self.urgent = True

    def take(self) -> Optional[Json]:
        """What the coordinator does not know yet; None if nothing."""
        if not self._dirty:
            return None
        summary = {**self._latest, **self._news, "stepped": self._stepped}
        self._news = {}
        self._dirty = self.urgent = False
        return summary

    def take_events(self) -> List[Json]:
        """Those that the coordinator does not know yet, oldest first."""
        events, self._events, self.urgent = self._events, [], False
        return events

    @property
    def rank(self) -> Optional[int]:
        """The lowest rank that has reported."""
        return self._latest.get("rank")

    @property
    def step(self) -> Optional[int]:
        step = self._latest.get("step")
        return step if isinstance(step, int) else None


def _put(report: Json, key: str, value: Any) -> None:
    if value is not None:
        report[key] = value


def _count(value: Any) -> Optional[int]:
    whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_COUNT
    return int(value) if whole else None


def _number(value: Any) -> Optional[float]:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e308 or not math.isfinite(value):
        return None
    return value


def _text(value: Any, limit: int) -> str:
    """Text that UTF-8 can hold: JSON can say half a surrogate pair, which Python takes and no page can be encoded with."""
    return str(value)[:limit].encode("utf-8", "replace").decode()


def _checkpoint(value: Any) -> Optional[Json]:
    if not isinstance(value, dict) or _count(value.get("step")) is None:
        return None
    return {"step": value["step"], "path": _text(value.get("path", ""), 1024), "time": _number(value.get("time")) or 0.0}


def _event(value: Any) -> Optional[Json]:
    if not isinstance(value, dict) or not value.get("reason"):
        return None
    kind = "Warning" if value.get("type") == "Warning" else "Normal"
    return {"type": kind, "reason": _text(value["reason"], 80), "message": _text(value.get("message", ""), 500)}
