"""The goodput of a job: progress, checkpoints, and the time that they are worth. Pure.

Training time is productive when its result is kept: by a checkpoint, by a memory snapshot that the
next attempt resumes from, or by the end of the job.
Training since the last checkpoint is lost when an attempt breaks.
"""

from __future__ import annotations

from typing import Any, Dict, Optional

from dtj_agent.group import restart_policy
from dtj_agent.group.history import History, number
from dtj_agent.group.messages import Now
from dtj_agent.group.recovery_timer import RecoveryTimer
from dtj_contract.worker_report import RESUMED_FROM

Json = Dict[str, Any]


class GoodputTracker:
    """Writes into `history`; a new attempt begins with `started`."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.lived = 0.0
        """Seconds from the attempt's start until it broke."""
        self.stepped = False
        """The attempt has done a step, as far as its workers report steps."""
        self._started = 0.0
        self._uncheckpointed_since: Optional[float] = None
        """Training after this time is in no checkpoint yet; None: not training."""
        self._since_step = 0
        """The step at that time."""
        self._dropped = 0.0
        """Seconds of training that the last attempt lost, unless a memory snapshot has kept them."""
        self._running = False
        self._reporting_rank: Optional[int] = None

    def started(self, now: Now) -> None:
        self._started = now.mono
        self._uncheckpointed_since = self._reporting_rank = None
        self._running, self.stepped = True, False

    def age(self, now: Now) -> float:
        """Returns the seconds since the attempt started."""
        return now.mono - self._started

    def ended(self, now: Now) -> None:
        """Ends the attempt's life. The time that its stop takes does not count."""
        self.lived = self.age(now)
        self._dropped = 0.0 if self._uncheckpointed_since is None else now.mono - self._uncheckpointed_since
        self.history.lived = max(self.history.lived, self.lived)

    def broken(self) -> None:
        """Drops the training that is in no checkpoint: the attempt stops before its end."""
        self._uncheckpointed_since, self._running = None, False

    def _resumed(self, step: int, last_step: Optional[int]) -> None:
        """Counts the training that is in no checkpoint, and that the next attempt has nevertheless kept."""
        if last_step is not None and last_step > self._since_step:
            kept = min(1.0, max(0.0, (step - self._since_step) / (last_step - self._since_step)))
            self.history.productive += kept * self._dropped
        self._dropped, self._since_step = 0.0, step

    def succeeded(self, now: Now) -> None:
        """Keeps everything that was trained.

        How long workers that never reported have trained is unknown.
        """
        if self._running and self._uncheckpointed_since is not None:
            self.history.productive += now.mono - self._uncheckpointed_since
        self.broken()

    def productive_seconds(self, now: Now) -> float:
        """Returns the seconds kept so far, and those that a checkpoint written now would keep."""
        since = self._uncheckpointed_since
        return self.history.productive + (0.0 if since is None else now.mono - since)

    @property
    def last_step(self) -> Optional[int]:
        step = (self.history.progress or {}).get("step")
        return step if isinstance(step, int) else None

    @property
    def is_silent(self) -> bool:
        """Whether an attempt runs, and none has ever reported a checkpoint."""
        return self._running and self.history.checkpoint is None

    def report(self, report: Json, recovery: Optional[RecoveryTimer], now: Now) -> None:
        """Adds what a member's workers reported.

        `recovery`: the one that led to this attempt, if any.
        """
        if self._running and self._uncheckpointed_since is None and report.get("phase") != "loading":
            self._uncheckpointed_since = now.mono
        self.stepped = self.stepped or bool(report.get("stepped"))
        if recovery is not None and not recovery.is_finished:
            if report.get("resumedStep") is not None:
                recovery.resumed_step = report["resumedStep"]
                self._resumed(report["resumedStep"], recovery.last_step)
            if report.get("resumedFrom") in RESUMED_FROM:
                recovery.source = report["resumedFrom"]
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
            restart_policy.step_done(self.history, number(kept["step"]))

    def file_saved(self, newest: float, now: Now) -> None:
        """Treats a file of modification time `newest` as a checkpoint if the script reports none."""
        if self.is_silent:
            restart_policy.file_saved(self.history, newest, self.age(now))

    def event(self, event: Any, now: Now) -> None:
        if isinstance(event, dict):
            kind = "Warning" if event.get("type") == "Warning" else "Normal"
            self.history.event(kind, str(event.get("reason"))[:80], str(event.get("message"))[:500], now.wall)

    def _checkpoint(self, checkpoint: Json, now: Now) -> None:
        restart_policy.checkpoint_written(self.history, checkpoint["step"])
        if self._uncheckpointed_since is not None:
            self.history.productive += now.mono - self._uncheckpointed_since
            self._uncheckpointed_since = now.mono
        self._since_step = checkpoint["step"]
        self.history.checkpoint = checkpoint
        self.history.revision += 1
