"""The progress that Kubeflow's clients send (transformers' KubeflowCallback, kubeflow.trainer), as a report. Pure.

    {"trainerStatus": {"progressPercentage": 40, "estimatedRemainingSeconds": 90, "lastUpdatedTime": "...",
                       "metrics": [{"name": "current_step", "value": "12"}, {"name": "loss", "value": "0.3"}]}}

Every value of a metric is text. The time is not read, because the agent's clock dates all reports.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Optional

from dtj_contract import worker_report
from dtj_contract.json_numbers import count, finite_number

STEP = ("current_step", "global_step", "step")
TOTAL = ("total_steps", "max_steps")
LOSS = "loss"
MAX_METRICS = 256
"""As many as kubeflow.trainer sends at most."""


def parse(body: bytes, attempt: int, rank: int) -> Optional[worker_report.WorkerReport]:
    """Returns the report of a rank; None if `body` is no status of Kubeflow's protocol."""
    try:
        raw = json.loads(body)
    except (ValueError, RecursionError):
        return None
    status = raw.get("trainerStatus") if isinstance(raw, dict) else None
    if not isinstance(status, dict):
        return None
    metrics = _metrics(status.get("metrics"))
    found: Dict[str, Any] = {"rank": rank, "attempt": attempt}
    found["step"], found["totalSteps"] = _count(metrics, STEP), _count(metrics, TOTAL)
    found["loss"] = metrics.get(LOSS)
    # A callback that begins reports 0 %, also where its training resumes in the middle.
    if status.get("progressPercentage") != 0 or found["step"] is not None:
        found["percent"] = status.get("progressPercentage")
        found["remainingSeconds"] = status.get("estimatedRemainingSeconds")
    others = {name: value for name, value in metrics.items() if name not in (*STEP, *TOTAL, LOSS)}
    if others:
        found["metrics"] = others
    return worker_report.clean(found)


def _metrics(raw: Any) -> Dict[str, float]:
    """Returns the metrics that are finite numbers, by name."""
    found = {}
    for entry in raw[:MAX_METRICS] if isinstance(raw, list) else []:
        name, value = (entry.get("name"), entry.get("value")) if isinstance(entry, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(value, (str, int, float)) or len(str(value)[:65]) > 64:
            continue
        try:
            number = finite_number(float(value))
        except (ValueError, OverflowError):
            continue
        if number is not None:
            found[name] = number
    return found


def _count(metrics: Dict[str, float], names: Any) -> Optional[int]:
    value = next((metrics[name] for name in names if name in metrics), None)
    return count(int(value)) if value is not None and value == int(value) else None
