"""The reports that workers send to their agent: one JSON object per datagram on the socket DTJ_AGENT_SOCKET.

    {"rank": 0, "attempt": 2, "phase": "training", "step": 70, "totalSteps": 900, "resumedStep": 50,
     "resumedFrom": "memory", "loss": 0.31, "samplesPerSecond": 410.0, "ownSeconds": 0.08,
     "announcesPauses": true, "metrics": {"lr": 0.001},
     "checkpoint": {"step": 50, "path": "/checkpoints/step-00000050", "time": 1690000000.0},
     "event": {"type": "Warning", "reason": "CheckpointSlow", "message": "..."}}

`rank` and `attempt` are required; every other key is optional. Reports are validated once, here,
so that later code need not check them again.

`percent` and `remainingSeconds` are what a script estimates of its whole training.

`optimizerSteps` counts the steps of this attempt, and is never the script's own `step`. A worker
that the agent has forked sends it with the descriptor of its page (dtj_contract.step_page).
"""

from __future__ import annotations

import json
from typing import Any, Dict, Optional

from dtj_contract.json_numbers import count, finite_number

RESUMED_FROM = ("memory", "replica", "partner", "volume")
PHASES = ("loading", "compiling", "training", "validating", "saving", "done")
MAX_METRICS = 32
MAX_REMAINING_SECONDS = 10 * 365 * 86400
MAX_METRIC_NAME = 80
MAX_PATH = 1024
MAX_EVENT_REASON = 80
MAX_EVENT_MESSAGE = 500

WorkerReport = Dict[str, Any]


def parse(datagram: bytes) -> Optional[WorkerReport]:
    """Returns the report with its valid keys only; None if the datagram is no report at all."""
    try:
        raw = json.loads(datagram)
    except (ValueError, RecursionError):
        return None
    return clean(raw)


def clean(raw: Any) -> Optional[WorkerReport]:
    """Returns the report with its valid keys only; None if `raw` is no report at all."""
    if not isinstance(raw, dict) or count(raw.get("rank")) is None or count(raw.get("attempt")) is None:
        return None
    report: WorkerReport = {"rank": raw["rank"], "attempt": raw["attempt"]}
    for key in ("step", "totalSteps", "resumedStep", "optimizerSteps"):
        _put(report, key, count(raw.get(key)))
    for key in ("loss", "samplesPerSecond", "ownSeconds"):
        _put(report, key, finite_number(raw.get(key)))
    for key, largest in (("percent", 100), ("remainingSeconds", MAX_REMAINING_SECONDS)):
        number = finite_number(raw.get(key), largest)
        _put(report, key, number if number is not None and number >= 0 else None)
    _put(report, "phase", raw.get("phase") if raw.get("phase") in PHASES else None)
    _put(report, "announcesPauses", True if raw.get("announcesPauses") is True else None)
    _put(report, "resumedFrom", raw.get("resumedFrom") if raw.get("resumedFrom") in RESUMED_FROM else None)
    if isinstance(raw.get("metrics"), dict):
        named = list(raw["metrics"].items())[:MAX_METRICS]
        pairs = [(_text(name, MAX_METRIC_NAME), finite_number(value)) for name, value in named]
        report["metrics"] = {name: value for name, value in pairs if value is not None}
    _put(report, "checkpoint", _checkpoint(raw.get("checkpoint")))
    _put(report, "event", _event(raw.get("event")))
    return report


def _put(report: WorkerReport, key: str, value: Any) -> None:
    if value is not None:
        report[key] = value


def _text(value: Any, limit: int) -> str:
    """Returns text that UTF-8 can hold.

    JSON can hold half a surrogate pair, which Python accepts and no page can be encoded with.
    """
    return str(value)[:limit].encode("utf-8", "replace").decode()


def _checkpoint(value: Any) -> Optional[Dict[str, Any]]:
    if not isinstance(value, dict) or count(value.get("step")) is None:
        return None
    path = _text(value.get("path", ""), MAX_PATH)
    return {"step": value["step"], "path": path, "time": finite_number(value.get("time")) or 0.0}


def _event(value: Any) -> Optional[Dict[str, Any]]:
    if not isinstance(value, dict) or not value.get("reason"):
        return None
    kind = "Warning" if value.get("type") == "Warning" else "Normal"
    reason = _text(value["reason"], MAX_EVENT_REASON)
    return {"type": kind, "reason": reason, "message": _text(value.get("message", ""), MAX_EVENT_MESSAGE)}
