"""The goodput of a job: progress, checkpoints, and the time that they are worth. Pure.

Training time is productive when its result is kept: by a checkpoint, by a memory snapshot that the
next attempt resumes from, or by the end of the job.
Training since the last checkpoint is lost when an attempt breaks.

A script that reports nothing trains from its first counted optimizer step on, and the files that it
saves in the checkpoint folder are its checkpoints. Its goodput is a lower bound: a script may save
elsewhere.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

from dtj_agent.group import restart_policy
from dtj_agent.group.history import History, number
from dtj_agent.group.messages import Now
from dtj_agent.group.recovery_timer import RecoveryTimer
from dtj_contract import names
from dtj_contract.worker_report import RESUMED_FROM

Json = Dict[str, Any]
STARTING = ("loading", "compiling")
"""Phases before the first step, in which nothing is trained."""


SHOWN = ("step", "totalSteps", "loss", "samplesPerSecond", "optimizerSteps")
ESTIMATES = ("percent", "remainingSeconds")
"""The script's own estimates, which few scripts report."""


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
        self._interrupted: Optional[Tuple[float, float]] = None
        """The training of the last broken attempt that is in no checkpoint as far as known: its begin and its end."""
        self._since_step = 0
        """The step at that time."""
        self._dropped = 0.0
        """Seconds of training that the last attempt lost, unless a memory snapshot has kept them."""
        self._running = False
        self._reporter: Optional[Tuple[bool, int]] = None
        """Whose steps are shown: those that a script reports rather than counted ones, then the lowest rank's."""

    def started(self, now: Now) -> None:
        self._started = now.mono
        self._uncheckpointed_since = self._reporter = None
        self._running, self.stepped = True, False

    def age(self, now: Now) -> float:
        """Returns the seconds since the attempt started."""
        return now.mono - self._started

    def ended(self, now: Now) -> None:
        """Ends the attempt's life. The time that its stop takes does not count."""
        self.lived = self.age(now)
        since = self._uncheckpointed_since
        self._interrupted = None if since is None else (since, now.mono)
        self._dropped = 0.0 if since is None else now.mono - since
        self.history.lived = max(self.history.lived, self.lived)

    def broken(self) -> None:
        """Drops the training that is in no checkpoint: the attempt stops before its end."""
        self._uncheckpointed_since, self._running = None, False

    def _resumed(self, step: int, last_step: Optional[int]) -> None:
        """Counts the training that is in no checkpoint, and that the next attempt has nevertheless kept."""
        if last_step is not None and last_step > self._since_step:
            kept = min(1.0, max(0.0, (step - self._since_step) / (last_step - self._since_step)))
            self.history.productive += kept * self._dropped
        self._dropped, self._since_step, self._interrupted = 0.0, step, None

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

    def steps_unknown(self, now: Now) -> bool:
        """Returns whether the attempt should have shown a step by now, and the job has never shown one."""
        return self._running and self.history.progress is None and self.age(now) > names.EARLY_SECONDS

    @property
    def is_silent(self) -> bool:
        """Whether an attempt runs, and none has ever reported a checkpoint."""
        return self._running and self.history.checkpoint is None

    def report(self, report: Json, recovery: Optional[RecoveryTimer], now: Now) -> None:
        """Adds what a member's workers reported.

        `recovery`: the one that led to this attempt, if any.
        """
        if self._running and self._uncheckpointed_since is None and report.get("phase") not in STARTING:
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
        self._show(report, now)

    def file_saved(self, newest: float, now: Now) -> None:
        """Treats a file of modification time `newest` as a checkpoint if the script reports none."""
        if not self.is_silent:
            return
        before = self.history.saved
        restart_policy.file_saved(self.history, newest, self.age(now))
        if before is None or newest > before:
            self._saved_at(min(now.mono, now.mono - (now.wall - newest)), now)

    def event(self, event: Any, now: Now) -> None:
        if isinstance(event, dict):
            kind = "Warning" if event.get("type") == "Warning" else "Normal"
            self.history.event(kind, str(event.get("reason"))[:80], str(event.get("message"))[:500], now.wall)

    def _show(self, report: Json, now: Now) -> None:
        """Keeps the steps of a report, unless those of a better reporter are known."""
        rank, step, counted = report.get("rank"), report.get("step"), report.get("optimizerSteps")
        # A count never replaces a step that the script has reported, in whichever attempt.
        has_own = step is not None or report.get("percent") is not None
        if not isinstance(rank, int) or (not has_own and (not counted or self.last_step is not None)):
            return
        reporter = (step is None, rank)
        if self._reporter is not None and reporter > self._reporter:
            return
        self._reporter = reporter
        kept = {key: report.get(key) for key in SHOWN}
        kept.update((key, report[key]) for key in ESTIMATES if report.get(key) is not None)
        if step is None and self.last_step is not None:  # a training that resumes at its end reports no step
            kept["step"], kept["totalSteps"] = self.last_step, (self.history.progress or {}).get("totalSteps")
        self.history.progress = dict(kept, metrics=report.get("metrics") or {}, time=now.wall)
        restart_policy.step_done(self.history, number(step))

    def _saved_at(self, saved: float, now: Now) -> None:
        """Keeps the training until `saved`, on the clock of `now.mono`."""
        if self._interrupted is not None and self._interrupted[0] < saved <= self._interrupted[1]:
            self.history.productive += saved - self._interrupted[0]
            self._interrupted = (saved, self._interrupted[1])
        if self._uncheckpointed_since is not None and saved > self._uncheckpointed_since:
            self.history.productive += saved - self._uncheckpointed_since
            self._uncheckpointed_since = saved

    def _checkpoint(self, checkpoint: Json, now: Now) -> None:
        restart_policy.checkpoint_written(self.history, checkpoint["step"])
        if self._uncheckpointed_since is not None:
            self.history.productive += now.mono - self._uncheckpointed_since
            self._uncheckpointed_since = now.mono
        self._since_step = checkpoint["step"]
        self.history.checkpoint = checkpoint
        self.history.revision += 1
