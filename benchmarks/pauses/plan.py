"""The pauses of a run. Pure: the script reads the plan, the report counts what was done of it."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

COMPILE, VALIDATE, WRITE = "compile", "validate", "write"
VALIDATE_EVERY, VALIDATE_SECONDS = 240.0, 90.0
WRITE_EVERY, WRITE_SECONDS = 420.0, 60.0
COMPILE_SECONDS = (60.0, 100.0)


class Pause(NamedTuple):
    """A pause that begins `at` seconds of training, pauses included, after the first step."""

    at: float
    kind: str
    seconds: float


def pauses(minutes: float, dice: random.Random) -> list[Pause]:
    """Returns the pauses of a run in their order. The compilation is before the first step.

    A pause that would outlast the run, or that a pause before delays to its end, is left out.
    """
    end = 60 * minutes
    due = [Pause(VALIDATE_EVERY * n, VALIDATE, VALIDATE_SECONDS) for n in range(1, int(end // VALIDATE_EVERY) + 1)]
    due += [Pause(WRITE_EVERY * n, WRITE, WRITE_SECONDS) for n in range(1, int(end // WRITE_EVERY) + 1)]
    found, free = [Pause(0.0, COMPILE, round(dice.uniform(*COMPILE_SECONDS), 1))], 0.0
    for pause in sorted(due):
        begin = max(pause.at, free)
        if begin + pause.seconds <= end:
            found.append(pause._replace(at=begin))
            free = begin + pause.seconds
    return found


def alarms(status: dict[str, Any], printed: str) -> dict[str, int]:
    """Returns the false alarms of a run in which nothing failed: each failure, restart and hang event is one."""
    lines = printed.splitlines()
    return {
        "failures": len(status.get("failures") or []),
        "restarts": max(int(status.get("attempt", 1)) - 1, int((status.get("restarts") or {}).get("total", 0))),
        "events": sum(any(f" {reason}: " in line for reason in ALARMS) for line in lines),
    }


ALARMS = ("WorkerHung", "Straggler", "NoSignOfLife", "Restarting")
