"""Progress and speed of the training, and the share of the time that was productive."""

from __future__ import annotations

from dtj_core.plan.agent_report import Report
from dtj_core.plan.model import Object
from dtj_core.plan.times import rfc3339, unix

# Shortest interval that a speed is computed from.
MIN_SPEED_SECONDS = 1.0
LONGEST_SECONDS = 10 * 365 * 86400
# Values of progress.stepSource.
SCRIPT, OPTIMIZER, UNKNOWN = "Script", "Optimizer", "Unknown"


def merge(status: Object, report: Report, now: float) -> Object:
    """Returns `status` with the progress, the checkpoint, the slow ranks and the goodput of `report`."""
    merged = dict(status)
    if not report.from_follower:
        merged.pop("stragglers", None)
    if report.stragglers:
        merged["stragglers"] = list(report.stragglers)
    if report.progress:
        merged["progress"] = _progress(status.get("progress") or {}, with_step(report.progress))
    elif report.steps_unknown and not status.get("progress"):
        merged["progress"] = {"stepSource": UNKNOWN}
    if report.checkpoint.get("step", -1) >= (status.get("checkpoint") or {}).get("step", -1) and report.checkpoint:
        merged["checkpoint"] = report.checkpoint
    return with_goodput(merged, now)


def with_step(progress: Object) -> Object:
    """Returns an agent's `progress` with the step to show, and where the step comes from.

    The script's own step has precedence over the optimizer steps that the agent has counted.
    """
    shown = {key: value for key, value in progress.items() if key != "optimizerSteps" and value is not None}
    if "step" in shown:
        return {**shown, "stepSource": SCRIPT}
    if progress.get("optimizerSteps"):
        return {**shown, "step": progress["optimizerSteps"], "stepSource": OPTIMIZER}
    return shown


def active_seconds(status: Object, now: float) -> float:
    """Returns how long the job has been active, that is not suspended."""
    started = unix(status.get("startTime"))
    return float(status.get("activeSeconds", 0.0)) + (max(0.0, now - started) if started is not None else 0.0)


def with_goodput(status: Object, now: float) -> Object:
    """Returns `status` with goodput: the share of active time spent on steps not lost later.

    Goodput is unknown while the script reports nothing.
    """
    active = active_seconds(status, now)
    silent = (
        not status.get("productiveSeconds")
        and not status.get("checkpoint")
        and "step" not in (status.get("progress") or {})
    )
    if active <= 0 or silent or "productiveSeconds" not in status:
        return status
    return {**status, "goodput": round(min(1.0, status["productiveSeconds"] / active), 4)}


def _progress(before: Object, report: Object) -> Object:
    step, total = report.get("step"), report.get("totalSteps")
    if report.get("stepSource") != before.get("stepSource") and before.get("stepSource"):
        before = {}  # another kind of step: no speed follows from the two
    # An attempt that resumes at the last step has nothing left to do and reports no loss. Keep the
    # loss of that step.
    same = before if step is not None and step == before.get("step") else {}
    progress = {k: same[k] for k in ("loss", "samplesPerSecond", "metrics") if k in same} | report
    speed = _speed(before, report)
    if speed is not None:
        progress["stepsPerSecond"] = speed
    remaining = progress.pop("remainingSeconds", None)
    if step is not None and total and total > 0:
        if progress.get("percent") != 100:  # the script has ended its training, whatever its last step was
            progress["percent"] = round(min(100.0, 100.0 * step / total), 1)
        if speed:
            remaining = (total - step) / speed
    reported = unix(report.get("time"))
    if reported is not None and remaining and 0 < remaining < LONGEST_SECONDS and progress.get("percent") != 100:
        progress["eta"] = rfc3339(reported + remaining)
    return progress


def _speed(before: Object, report: Object) -> float | None:
    """Returns the steps per second since the last written report.

    The old speed stands where the new one is unknown (a restart).
    """
    then, now = unix(before.get("time")), unix(report.get("time"))
    old: float | None = before.get("stepsPerSecond")
    if then is None or now is None or "step" not in before or "step" not in report:
        return old
    steps, seconds = report["step"] - before["step"], now - then
    return round(steps / seconds, 4) if steps > 0 and seconds >= MIN_SPEED_SECONDS else old
