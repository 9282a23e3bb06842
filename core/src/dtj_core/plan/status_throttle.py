"""Throttles status writes: significant changes are written at once, mere progress once in a while.

A token bucket bounds the writes, because a pod decides what its agent reports: an agent that
reports another state at each poll costs one write in WRITE_SECONDS once the bucket is empty. The
level of the bucket is kept in the status itself. The end of a job, and each step of a suspension or
of a changed spec, is written whatever the bucket holds. Mere progress has a pace of its own, and
leaves the whole bucket to what is written at once. Only where another write has come between, so that
the progress in the status is older than its pace, does progress take from the bucket, and no more than
the half that warnings may take. The first step, loss and estimate of the end, for which a user waits, take
from that half too.

While the steps stand still, the agents' productive seconds and the goodput grow with the clock alone. Both wait for
any other change, or for CLOCK_SECONDS: 10,000 such jobs would else write 170 times a second. Nothing is lost by it,
because training that is kept comes with a checkpoint, which is a change.
"""

from __future__ import annotations

from dataclasses import replace

from dtj_contract import names
from dtj_contract.names import Reason
from dtj_core.plan.avoided_nodes import active_nodes
from dtj_core.plan.conditions import is_true
from dtj_core.plan.job import Job
from dtj_core.plan.job_status import is_stop_announced
from dtj_core.plan.model import Object, Plan, Settings
from dtj_core.plan.times import rfc3339, unix

QUIET_REASONS = {Reason.PODS_PENDING, Reason.RENDEZVOUS}  # steps of a normal start
# Writes that a job may make in a row.
WRITE_BURST = 10.0
# Time to earn one more write after that.
WRITE_SECONDS = 10.0
# Age of a status that only the passing of time has changed, when it is written.
CLOCK_SECONDS = 600.0
CLOCKED = ("productiveSeconds", "goodput")


def throttle_status_writes(
    job: Job, wanted: Plan, until_deadline: float | None, now: float, settings: Settings
) -> Plan:
    """Returns `wanted` with its status held back if the write can wait.

    requeue_after is no later than the deadline of the job, or the time at which the write is due.
    """
    old, new = job.status, wanted.status
    times = [wanted.requeue_after, until_deadline if "startTime" in new else None]
    stamp = {"lastUpdateTime": old["lastUpdateTime"]} if "lastUpdateTime" in old else {}
    is_urgent = unthrottled_fields(old) != unthrottled_fields(new)
    is_significant = significant_fields(old) != significant_fields(new)
    is_progress = not is_significant and _is_progress(old, new, now)
    pause = 0.0 if is_urgent else _pause(old, new, is_significant, is_progress, now, settings)
    is_in_pace = is_progress and _until_progress(old, now, settings) == 0
    cost = 0.0 if not is_urgent and is_in_pace else 1.0
    if new | stamp == old:
        status = old
    elif pause == 0:
        status = _with_tokens(old, new, now, cost) | {"lastUpdateTime": rfc3339(now)}
    else:
        status = old
        times = [pause, *(pause if time == 0 else time for time in times)]
    return replace(
        wanted,
        status=status,
        events=wanted.events if status is not old else (),
        requeue_after=min((time for time in times if time is not None), default=None),
    )


def _pause(old: Object, new: Object, is_significant: bool, is_progress: bool, now: float, settings: Settings) -> float:
    """Returns the seconds until `new` may be written.

    A clock that was set back does not add to them.
    """
    if is_significant:
        return max(0.0, 1.0 - _tokens(old, now)) * WRITE_SECONDS
    if _is_clock(old, new):
        return _until(old, now, max(CLOCK_SECONDS, settings.progress_write_seconds))
    if not is_progress:
        return 0.0
    is_due = _is_outdated(old, new, settings) or _has_first_figures(old, new)
    if is_due and _tokens(old, now) >= WRITE_BURST / 2:
        return 0.0
    return _until_progress(old, now, settings)


def _until_progress(old: Object, now: float, settings: Settings) -> float:
    """Returns the seconds until mere progress may be written in its own pace."""
    return _until(old, now, settings.progress_write_seconds)


def _until(old: Object, now: float, pace: float) -> float:
    last = unix(old.get("lastUpdateTime"))
    past = pace if last is None else now - last
    return max(pace - past, 0.0) if past >= 0 else 0.0


def _is_clock(old: Object, new: Object) -> bool:
    """Returns whether `old` and `new` differ by the passing of time alone."""
    return _without_clock(old) == _without_clock(new)


def _without_clock(status: Object) -> Object:
    kept = {key: value for key, value in status.items() if key not in (*CLOCKED, "lastUpdateTime", "writesLeft")}
    return kept | {"agent": {k: v for k, v in (status.get("agent") or {}).items() if k not in CLOCKED}}


def _is_outdated(old: Object, new: Object, settings: Settings) -> bool:
    """Returns whether the agents' progress in `old` is older than the pace, by their own clock."""
    times = [unix((status.get("progress") or {}).get("time")) for status in (old, new)]
    before, after = times
    return before is not None and after is not None and after - before >= settings.progress_write_seconds


def _has_first_figures(old: Object, new: Object) -> bool:
    """Returns whether `new` has a step, a loss or an estimate of the end where `old` has none."""
    before, after = (status.get("progress") or {} for status in (old, new))
    return any(name in after and name not in before for name in ("step", "loss", "eta"))


def _is_progress(old: Object, new: Object, now: float) -> bool:
    """Returns whether `new`, which has no significant change, waits for the next write of mere progress.

    A warning does too while the bucket is less than half full.
    """
    return _event_time(old) == _event_time(new) or _tokens(old, now) < WRITE_BURST / 2


def _tokens(status: Object, now: float) -> float:
    """Returns how many writes the job may make at once.

    A status that was never written has the full burst.
    """
    last, left = unix(status.get("lastUpdateTime")), status.get("writesLeft")
    if last is None or left is None:
        return WRITE_BURST
    return min(WRITE_BURST, float(left) + max(0.0, now - last) / WRITE_SECONDS)


def _with_tokens(old: Object, new: Object, now: float, cost: float) -> Object:
    """Returns `new` with the level of the bucket after this write."""
    return {**new, "writesLeft": round(max(0.0, _tokens(old, now) - cost), 3)}


def _event_time(status: Object) -> object:
    """Returns the time of the newest agent warning that became an event."""
    return (status.get("agent") or {}).get("eventTime")


def unthrottled_fields(status: Object) -> Object:
    """Returns the fields whose change is never held back.

    The operator's next step, or a script that waits for the end, depends on them.
    """
    return {
        "ends": [is_true(status, kind) for kind in (names.COMPLETE, names.FAILED, names.SUSPENDED)],
        "stopping": is_stop_announced(status),
        "nodes": active_nodes(status),
        "evictions": (status.get("ownEvictions") or {}).get("podUID"),
        "times": [status.get(name) for name in ("startTime", "completionTime", "observedGeneration")],
    }


def significant_fields(status: Object) -> Object:
    """Returns the fields whose change is written at once, as long as the bucket is not empty.

    An agent's own warnings are not among them. Warnings are written at once while the bucket is at
    least half full, so that a pod which warns at each poll leaves the other half to changes of the
    job.
    """
    return {
        "conditions": [
            (c.get("type"), c.get("status"), "" if c.get("reason") in QUIET_REASONS else c.get("reason"))
            for c in status.get("conditions") or ()
        ],
        "attempt": status.get("attempt", 0),
        "size": [status.get(name) for name in ("replicas", "spares", "shrinkTime")],
        "restarts": (status.get("restarts") or {}).get("total", 0),
        "failures": [
            (f.get("attempt"), f.get("ordinal"), f.get("rank"), f.get("reason") == Reason.OOM_KILLED)
            for f in status.get("failures") or ()
        ],
        # Written twice: when a recovery becomes known, and when its cost does.
        "recoveries": [(r.get("attempt"), _is_timed(r.get("seconds") or {})) for r in status.get("recoveries") or ()],
        "times": [status.get(name) for name in ("startTime", "completionTime", "observedGeneration")],
    }


def _is_timed(seconds: Object) -> bool:
    """Returns whether the first step after a recovery is done.

    Loading ends with the first step where steps are only counted, so that phase firstStep is 0.
    """
    return bool(seconds.get("firstStep") or ("firstStep" in seconds and seconds.get("load")))
