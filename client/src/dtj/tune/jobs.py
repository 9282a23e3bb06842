"""The jobs of trials, as the engine sees them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from dtj.local.conditions import is_true
from dtj.tune.planner import Job, JobState
from dtj.tune.spec import STEP_METRICS
from dtj_contract import names
from dtj_core.plan.model import Object
from dtj_core.plan.times import unix


class TrialJobs(Protocol):
    """Creates, observes and stops the jobs of trials. Every call may be repeated."""

    look_seconds: float
    """Seconds between two looks."""

    def observe(self, numbers: Sequence[int]) -> Mapping[int, Job]:
        """Returns the jobs of these trials that exist."""

    def start(self, number: int, job: Object) -> None:
        """Creates the job of a trial, or continues it. Does nothing if the job is active."""

    def stop(self, number: int, job: Object) -> None:
        """Stops the job gracefully, so that it may save. Returns at once."""

    def export(self, number: int, job: Object, details: Mapping[str, object]) -> None:
        """Copies the trial's newest checkpoint, or notes where it lies, with `details`."""


def measured(job: Object, metric: str) -> tuple[int | None, float | None]:
    """Returns the last step that a job reported and the value of the metric there."""
    progress = job.get("status", {}).get("progress") or {}
    value = progress.get(metric) if metric in STEP_METRICS else (progress.get("metrics") or {}).get(metric)
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return progress.get("step"), None
    return progress.get("step"), float(value)


def last_step_time(job: Object) -> float | None:
    """Returns the time of the last report of a step, None if there was none."""
    return unix((job.get("status", {}).get("progress") or {}).get("time"))


def running_since(job: Object) -> float | None:
    """Returns the time since which all ranks run, None if they do not."""
    for condition in job.get("status", {}).get("conditions") or ():
        if condition["type"] == names.RUNNING and condition["status"] == "True":
            return unix(condition.get("lastTransitionTime"))
    return None


def ended(job: Object, metric: str) -> Job | None:
    """Returns the job if its status has an outcome, else None."""
    step, value = measured(job, metric)
    status = job.get("status", {})
    if is_true(job, names.COMPLETE):
        known = sorted((status.get("progress") or {}).get("metrics") or {})
        message = "" if value is not None else (
            f"completed without {metric} in its progress; it reported {', '.join(known) or 'no metric'}"
        )  # fmt: skip
        return Job(state=JobState.COMPLETE, step=step, value=value, message=message)
    if is_true(job, names.FAILED):
        found = next(each for each in status["conditions"] if each["type"] == names.FAILED)
        return Job(state=JobState.FAILED, step=step, value=value, message=f"{found['reason']}: {found['message']}")
    return None
