"""What the running attempt has achieved: progress, checkpoints, the time that they are worth. Pure.

Training time is productive when its result is kept: by a checkpoint, or by the end of the job. What was trained since the
last checkpoint when an attempt breaks is lost.
"""

from __future__ import annotations

from typing import Any, Dict, Optional

from dtj_agent.group.backoff import QUICK_SECONDS
from dtj_agent.group.history import History, number
from dtj_agent.group.messages import Now
from dtj_agent.group.recovery import Recovery

Json = Dict[str, Any]


class Ledger:
    """Writes into `history`; a new attempt begins with `started`."""

    def __init__(self, history: History) -> None:
        self.history = history
        self._started = 0.0
        self._unkept_since: Optional[float] = None
        """Training after this time is in no checkpoint yet; None: not training."""
        self._running = False
        self._reporting_rank: Optional[int] = None
        self.lived = 0.0
        """Seconds from the attempt's start until it broke."""
        self.stepped = False
        """The attempt has done a step, as far as its workers say."""

    def started(self, now: Now) -> None:
        self._started = now.mono
        self._unkept_since = self._reporting_rank = None
        self._running, self.stepped = True, False

    def age(self, now: Now) -> float:
        """Seconds since the attempt started."""
        return now.mono - self._started

    def ended(self, now: Now) -> None:
        """The attempt has begun to stop: what follows is no part of its life."""
        self.lived = self.age(now)
        self.history.lived = max(self.history.lived, self.lived)

    def broken(self) -> None:
        """The attempt stops before its end."""
        self._unkept_since, self._running = None, False

    def succeeded(self, now: Now) -> None:
        """All that was trained is kept. Of workers that never reported nobody knows how long they have trained."""
        if self._running and self._unkept_since is not None:
            self.history.productive += now.mono - self._unkept_since
        self.broken()

    def productive(self, now: Now) -> float:
        """Seconds kept so far, and those that a checkpoint written now would keep."""
        return self.history.productive + (0.0 if self._unkept_since is None else now.mono - self._unkept_since)

    @property
    def last_step(self) -> Optional[int]:
        step = (self.history.progress or {}).get("step")
        return step if isinstance(step, int) else None

    def report(self, report: Json, recovery: Optional[Recovery], now: Now) -> None:
        """What a member's workers reported. `recovery`: the one that led to this attempt, if any."""
        if self._running and self._unkept_since is None and report.get("phase") != "loading":
            self._unkept_since = now.mono
        self.stepped = self.stepped or bool(report.get("stepped"))
        if recovery is not None and not recovery.is_finished:
            if report.get("resumedStep") is not None:
                recovery.resumed_step = report["resumedStep"]
            if report.get("phase") != "loading":
                recovery.enter("firstStep", now)
            if report.get("stepped"):
                recovery.finished(now)
            self.history.recovery(recovery.to_json())
        checkpoint = report.get("checkpoint")
        if isinstance(checkpoint, dict) and isinstance(checkpoint.get("step"), int):
            self._checkpoint(checkpoint, now)
        rank = report.get("rank")
        if (
            isinstance(rank, int)
            and report.get("step") is not None
            and (self._reporting_rank is None or rank <= self._reporting_rank)
        ):
            self._reporting_rank = rank
            kept = {key: report.get(key) for key in ("step", "totalSteps", "loss", "samplesPerSecond")}
            self.history.progress = dict(kept, metrics=report.get("metrics") or {}, time=now.wall)
            if number(kept["step"]) > self.history.furthest:
                self.history.furthest, self.history.losses = int(number(kept["step"])), []

    @property
    def is_silent(self) -> bool:
        """An attempt runs, and none has ever reported a checkpoint."""
        return self._running and self.history.checkpoint is None

    def saved(self, newest: float, now: Now) -> None:
        """The script's newest file is of this time. A later one than before is a checkpoint: the budget is full again.

        One that an attempt writes as it begins shows nothing: the next attempt would write it as well.
        """
        before, history = self.history.saved, self.history
        if not self.is_silent or (before is not None and newest <= before):
            return
        history.saved = newest
        history.revision += 1
        if before is not None and self.age(now) >= QUICK_SECONDS:
            history.spent, history.losses = [], []

    def event(self, event: Any, now: Now) -> None:
        if isinstance(event, dict):
            kind = "Warning" if event.get("type") == "Warning" else "Normal"
            self.history.event(kind, str(event.get("reason"))[:80], str(event.get("message"))[:500], now.wall)

    def _checkpoint(self, checkpoint: Json, now: Now) -> None:
        before = self.history.checkpoint
        if before is None or checkpoint["step"] > number(before.get("step")):
            self.history.spent, self.history.losses = [], []  # the budget is full again: this progress no failure takes away
        if self._unkept_since is not None:
            self.history.productive += now.mono - self._unkept_since
            self._unkept_since = now.mono
        self.history.checkpoint = checkpoint
        self.history.revision += 1
