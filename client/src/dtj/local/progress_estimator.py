"""The progress at this moment.

The job's own status has the progress only every few seconds, and its times in whole seconds.
"""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime

from dtj_core.plan.model import Object
from dtj_core.plan.progress import with_step

WINDOW_SECONDS = 20.0  # over which the speed is measured


class ProgressEstimator:
    """Estimates speed and remaining time from the agent's last reports."""

    def __init__(self) -> None:
        self._attempt = 0
        self._reports: deque[tuple[float, int]] = deque()

    def apply(self, job: Object, agent: Object | None) -> Object:
        """Returns `job` with the progress that its agent just reported, and with the resulting `eta`."""
        status = job.get("status", {})
        if not agent or agent.get("attempt") != status.get("attempt"):
            return job
        known = with_step(agent.get("progress") or {})
        progress: Object = {**(status.get("progress") or {}), **known}
        progress.pop("eta", None)
        left = progress.pop("remainingSeconds", None)
        speed = self._speed(agent["attempt"], known)
        if speed and progress.get("totalSteps"):
            left = (progress["totalSteps"] - progress["step"]) / speed
        if left and "time" in known:
            progress["eta"] = datetime.fromtimestamp(known["time"] + left, UTC).isoformat()
        return {**job, "status": {**status, "progress": progress}}

    def _speed(self, attempt: int, known: Object) -> float | None:
        """Returns the steps per second in this attempt, or None before its second report."""
        if attempt != self._attempt:
            self._attempt = attempt
            self._reports.clear()
        if "step" not in known or "time" not in known:
            return None
        reports = self._reports
        if not reports or known["time"] > reports[-1][0]:
            reports.append((known["time"], known["step"]))
        while len(reports) > 2 and reports[0][0] < known["time"] - WINDOW_SECONDS:
            reports.popleft()
        seconds, steps = reports[-1][0] - reports[0][0], reports[-1][1] - reports[0][1]
        return steps / seconds if seconds > 0 and steps > 0 else None
