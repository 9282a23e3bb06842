"""One run of the script under `dtj run`, and what the job's status and events say of it."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.ledger import Trial
from benchmarks.pauses import plan
from benchmarks.recovery.arms import Ours
from benchmarks.recovery.logbook import Entry, group_steps

MORE_SECONDS = 600.0
"""For the start and the compilation: a run that lasts longer has not trained to its end."""
LOOK_SECONDS = 5.0


class Defaults(Ours):
    """The script with every field of the spec at its default: workers are forked, their steps are known."""

    SCRIPT = Path(__file__).parent / "script.py"
    SPEC: ClassVar[dict[str, Any]] = {}


class NeverWarm(Defaults):
    """The script with workers that are started plainly: their steps are unknown."""

    SPEC: ClassVar[dict[str, Any]] = {"warmWorkers": "Never"}


ARMS: dict[str, type[Defaults]] = {"dtj": Defaults, "dtj, warmWorkers: Never": NeverWarm}


def measure(arm: str, minutes: float, dice: random.Random) -> Trial:
    """Runs the script once. Returns its pauses and its alarms; `seconds` is None unless it has trained to the end."""
    group, pauses = ARMS[arm](2, 0.0), plan.pauses(minutes, dice)
    group.environment["PAUSES_PLAN"] = json.dumps(pauses)
    began, deadline = time.monotonic(), time.monotonic() + 60 * minutes + MORE_SECONDS
    try:
        dtj, trained = group.start(), False
        while dtj.poll() is None and not (trained := is_trained(group.entries(), minutes)):
            if time.monotonic() > deadline:
                break
            time.sleep(LOOK_SECONDS)
        status = json.loads((group.folder / "run/status.json").read_text()).get("status", {})
        printed = (group.folder / "dtj.out").read_text(errors="replace")
        logs = [path.read_text() for path in (group.folder / "log").iterdir()]
        done = max((done_pauses(text) for text in logs), key=len, default=[])
        alarms = plan.alarms(status, printed)
        trial = {
            "seconds": round(time.monotonic() - began, 1) if trained else None,
            "minutes": minutes,
            "pauses": {kind: done.count(kind) for kind in dict.fromkeys(done)},
            "processes": len(logs),
            "steps": len(group_steps(group.entries())),
            **alarms,
        }
        return trial if trained and not any(alarms.values()) else trial | {"output": printed[-3000:]}
    finally:
        group.close()


def is_trained(entries: Sequence[Entry], minutes: float) -> bool:
    """Returns whether the group has trained for so long, pauses included."""
    steps = group_steps(entries)
    return bool(steps) and steps[-1][0] - steps[0][0] >= 60 * minutes


def done_pauses(log: str) -> list[str]:
    """Returns the kinds of the pauses that a process has made."""
    return [line.split()[2] for line in log.splitlines() if line.startswith("pause ")]
