"""When a status is worth a write: what matters at once, what merely moves on (progress) once in a while."""

from __future__ import annotations

from dataclasses import replace

from dtj_agent.names import Reason
from dtj_operator.plan.job import Job
from dtj_operator.plan.model import Object, Plan, Settings
from dtj_operator.plan.times import rfc3339, unix

QUIET_REASONS = {Reason.PODS_PENDING, Reason.RENDEZVOUS}  # steps of a start that goes well


def paced(job: Job, wanted: Plan, until_deadline: float | None, now: float, settings: Settings) -> Plan:
    """`wanted`, its status held back where it can wait, and with the time of the next look at the latest."""
    old, new = job.status, wanted.status
    times = [wanted.requeue_after, until_deadline if "startTime" in new else None]
    stamp = {"lastUpdateTime": old["lastUpdateTime"]} if "lastUpdateTime" in old else {}
    if new | stamp == old:
        status = old
    elif urgent(old) != urgent(new) or _pause(old, now, settings) == 0:
        status = new | {"lastUpdateTime": rfc3339(now)}
    else:
        status = old
        times.append(_pause(old, now, settings))
    return replace(
        wanted,
        status=status,
        events=wanted.events if status is not old else (),
        requeue_after=min((time for time in times if time is not None), default=None),
    )


def _pause(old: Object, now: float, settings: Settings) -> float:
    """Seconds until progress may be written again. A clock that was set back does not prolong them."""
    last = unix(old.get("lastUpdateTime"))
    past = settings.progress_write_seconds if last is None else now - last
    return max(0.0, settings.progress_write_seconds - past) if past >= 0 else 0.0


def urgent(status: Object) -> Object:
    """What somebody waits for: a change of it is written at once."""
    return {
        "conditions": [
            (c.get("type"), c.get("status"), "" if c.get("reason") in QUIET_REASONS else c.get("reason"))
            for c in status.get("conditions") or ()
        ],
        "attempt": status.get("attempt", 0),
        "restarts": (status.get("restarts") or {}).get("total", 0),
        "failures": [(f.get("attempt"), f.get("ordinal"), f.get("rank")) for f in status.get("failures") or ()],
        # Once when it is known and once when its cost is.
        "recoveries": [
            (r.get("attempt"), bool((r.get("seconds") or {}).get("firstStep"))) for r in status.get("recoveries") or ()
        ],
        "times": [status.get(name) for name in ("startTime", "completionTime", "observedGeneration")],
        "events": (status.get("agent") or {}).get("eventTime"),
    }
