"""The outcome of a job: the same in every agent, file and termination message. Pure.

The coordinator decides it once.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Optional, Tuple

from dtj_agent.group.history import History, number
from dtj_contract import names

SUCCEEDED, FAILED = "Succeeded", "Failed"
OUTCOME_VERSION = 1
SHORT_MESSAGE = 200
"""Characters of the message of an earlier failure."""
IDENTITY = ("attempt", "ordinal", "rank", "pod")
"""The fields that tell one failure from another."""


def build(
    uid: str,
    result: str,
    reason: str,
    message: str,
    failure: Optional[Dict[str, Any]],
    history: History,
    wall: float,
    floor: int = 1,
) -> Dict[str, Any]:
    """Returns the outcome of the contract.

    Its attempt fences it: at least that of the run before this one, whose attempts are below
    `floor`.
    """
    return {
        "version": OUTCOME_VERSION, "uid": uid, "result": result, "reason": reason, "message": message,
        "attempt": max(history.attempt, floor - 1), "restarts": dict(history.restarts), "failure": failure,
        "failures": _earlier_failures(history, failure),
        "progress": history.progress, "checkpoint": history.checkpoint, "recoveries": history.recoveries[-3:],
        "productiveSeconds": round(history.productive, 3), "startTime": history.start_time, "time": wall,
    }  # fmt: skip


def _earlier_failures(history: History, last: Optional[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Returns the failures before `last` in short.

    An operator that was away, or had no write left, learns of them from the outcome alone.
    """
    identity = [(last or {}).get(key) for key in IDENTITY]
    return [
        {
            key: value[:SHORT_MESSAGE] if key == "message" and isinstance(value, str) else value
            for key, value in failure.items()
            if value is not None and key not in ("logTail", "stack")
        }
        for failure in history.failures
        if last is None or [failure.get(key) for key in IDENTITY] != identity
    ]


def ended_attempt(outcome: Dict[str, Any]) -> int:
    """Returns the attempt that the outcome ends: an agent that knows a later one drops the outcome."""
    return int(number(outcome.get("attempt")))


def summary(outcome: Dict[str, Any]) -> Tuple[object, object, object]:
    """Returns result, reason and message."""
    return outcome.get("result"), outcome.get("reason"), outcome.get("message")


def exit_code(outcome: Dict[str, Any]) -> int:
    return 0 if outcome.get("result") == SUCCEEDED else 1


def termination_message(outcome: Dict[str, Any], limit: int = names.TERMINATION_LOG_BYTES) -> bytes:
    """Returns JSON of at most `limit` bytes.

    First the stack goes, then the log tail loses its oldest lines, then earlier failures, recoveries
    and metrics go.
    """
    slim: Dict[str, Any] = json.loads(json.dumps(outcome))
    if slim["failure"] and len(_encode(slim)) > limit:
        slim["failure"].pop("stack", None)
    tail = str((slim["failure"] or {}).get("logTail", ""))
    for drop in ("", "failures", "recoveries", "progress", "checkpoint"):
        if drop:
            slim[drop] = [] if drop in ("failures", "recoveries") else None
        size = len(_encode(slim))
        if size > limit and tail:
            # JSON makes 1 to 12 bytes of a character: cut the least that may help, then measure
            # again.
            while tail and size > limit:
                tail = tail[max(1, (size - limit) // 12) :]
                slim["failure"]["logTail"] = tail
                size = len(_encode(slim))
        if size <= limit:
            return _encode(slim)
    slim["failure"] = None
    slim["message"] = slim["message"][:300]
    return _encode(slim)


def _encode(outcome: Dict[str, Any]) -> bytes:
    return json.dumps(outcome, separators=(",", ":")).encode()
