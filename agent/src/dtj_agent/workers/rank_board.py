"""The reports of one attempt by rank: step, pauses, phase. Pure."""

from __future__ import annotations

from collections import deque
from typing import Deque, Dict, Optional

from dtj_agent.group.vitals import RankVitals
from dtj_contract.worker_report import WorkerReport

RECENT_STEPS = 31
LEAST_OWN_STEPS = 20
"""Reports of a rank's own work that make it known."""
TRAINING = ("", "training")


class RankBoard:
    """Keeps the steps of each rank. `now`: monotonic seconds, here and below."""

    def __init__(self, attempt: int, now: float, longest: float = 0.0, start: float = 0.0) -> None:
        """Begins an attempt.

        `longest`, `start`: the longest pause and the slowest start of earlier ones, which every rank
        inherits: a coordinator that is new learns them by that.
        """
        self._attempt = attempt
        self._longest = longest
        self._start = start
        self._began = now
        self._ranks: Dict[int, _Rank] = {}

    def add(self, report: WorkerReport, now: float) -> None:
        """Folds in a report; reports of other attempts are dropped."""
        if report["attempt"] == self._attempt:
            self._ranks.setdefault(report["rank"], _Rank(now, self._longest)).add(report, now)

    def vitals(self, rank: int, now: float) -> RankVitals:
        """Returns what the rank has reported."""
        known = self._ranks.get(rank)
        if known is None:
            return RankVitals(rank, age=now - self._began, longest=self._longest, start=self._start)
        return known.vitals(rank, self._began, now)._replace(start=self._start)

    @property
    def longest(self) -> float:
        """The longest pause that any attempt has shown here."""
        return max([self._longest, *(rank.longest for rank in self._ranks.values())])

    @property
    def start(self) -> float:
        """The slowest start that any attempt has shown here."""
        return max([self._start, *(rank.first(self._began) for rank in self._ranks.values())])


class _Rank:
    def __init__(self, now: float, longest: float) -> None:
        self.longest = longest
        self._step: Optional[int] = None
        self._first: Optional[int] = None
        """The step before the first one that was reported."""
        self._at = self._first_at = now
        self._quiet_since = now
        """The last step, or the end of an announced pause after it."""
        self._phase = ""
        self._paused = False
        """A pause was announced since the last step."""
        self._recent: Deque[float] = deque(maxlen=RECENT_STEPS)
        self._announces = False
        self._has_own_steps = False
        self._own: Deque[float] = deque(maxlen=RECENT_STEPS)

    def add(self, report: WorkerReport, now: float) -> None:
        before, self._phase = self._phase, report.get("phase", self._phase)
        if before not in TRAINING and self._phase in TRAINING:
            self._quiet_since = now
        self._announces = self._announces or report.get("announcesPauses", False)
        self._paused = self._paused or self._phase not in TRAINING
        if "ownSeconds" in report:
            self._own.append(report["ownSeconds"])
        step = self._counted(report)
        if step is None:
            if self._step is not None and report.get("optimizerSteps"):
                # Beside the script's own steps, which may be rare, these show that it trains.
                self._quiet_since = max(self._quiet_since, now)
            return
        if self._step is None:
            self._first, self._first_at = step - 1, now
        elif step != self._step or "step" not in report:
            self._pause(now - self._at, max(1, step - self._step))
        # A count is reported when it has changed, also that of a new optimizer; a script's own numbers
        # may begin again with each epoch.
        if step != self._step or "step" not in report:
            self._step, self._at = step, now
            self._quiet_since = now
            self._paused = self._phase not in TRAINING

    def _counted(self, report: WorkerReport) -> Optional[int]:
        """Returns the step of a report: the script's own, else that of its optimizer.

        The phases before the first step may name the step of a checkpoint, which is no step of this
        attempt.
        """
        if "step" in report:
            if report.get("phase", "training") != "training" or "resumedStep" in report:
                return None
            self._has_own_steps = True
            step: int = report["step"]
            return step
        # 0 announces the counter, long before the first step.
        return None if self._has_own_steps else report.get("optimizerSteps") or None

    def _pause(self, seconds: float, steps: int) -> None:
        if not self._paused and seconds >= 0:  # a count carries the time of its step, and may come late
            self._recent.append(seconds / steps)
            self.longest = max(self.longest, seconds)

    def first(self, began: float) -> float:
        """Returns the seconds from `began` to the first step; 0 before it."""
        return 0.0 if self._step is None else self._first_at - began

    def vitals(self, rank: int, began: float, now: float) -> RankVitals:
        return RankVitals(
            rank,
            step=self._step,
            steps=0 if self._step is None or self._first is None else self._step - self._first,
            age=now - (began if self._step is None else self._quiet_since),
            first=self.first(began),
            phase=self._phase,
            usual=_median(self._recent),
            longest=self.longest,
            announces=self._announces,
            own=_median(self._own) if len(self._own) >= LEAST_OWN_STEPS else None,
        )


def _median(values: Deque[float]) -> Optional[float]:
    return sorted(values)[len(values) // 2] if values else None
