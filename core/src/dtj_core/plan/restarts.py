"""Attempts, restarts, failures and recoveries: what the agents remember, added to what the status already has.

The agents keep their history through every restart, and lose it only with the last of their pods (a suspension, a
lost cluster). So the status keeps sums of its own and, in `status.agent`, what the agents last said: only the
difference is added. Nothing here ever goes backwards.
"""

from __future__ import annotations

from dtj_core.api.status import FAILURES, RECOVERIES
from dtj_core.plan.agent_report import Report
from dtj_core.plan.model import Object

COUNTERS = ("inPlace", "pod", "counted")


def merge(status: Object, report: Report) -> Object:
    """`status` with what `report` adds to it."""
    seen: Object = status.get("agent") or {}
    sums: Object = status.get("restarts") or {}
    counters = {
        name: sums.get(name, 0) + growth(report, seen, report.restarts.get(name, 0), seen.get(name, 0)) for name in COUNTERS
    }
    productive = growth(report, seen, report.productive_seconds, seen.get("productiveSeconds", 0.0))
    merged = {
        **status,
        "attempt": max(status.get("attempt", 0), report.attempt),
        "restarts": {"total": counters["inPlace"] + counters["pod"], **counters},
        "productiveSeconds": round(status.get("productiveSeconds", 0.0) + productive, 3),
        "agent": _seen(seen, report),
    }
    failures = merge_failures(status.get("failures") or [], report.failures)
    if failures:
        merged["failures"] = failures
    recoveries = _union(status.get("recoveries") or [], report.recoveries, ("attempt",))[-RECOVERIES:]
    if recoveries:
        merged["recoveries"] = recoveries
    return merged


def growth(report: Report, seen: Object, said: float, before: float) -> float:
    """By how much a counter of the agents' grew since `seen` was written."""
    if report.start_time is None and not report.from_outcome:
        return 0  # no attempt yet: they have nothing to count
    if report.start_time is not None and report.start_time != seen.get("startTime", report.start_time):
        return said  # another memory: it began at 0
    if report.start_time is None and said < before:
        return said  # an outcome does not say which memory it is from, but this one is younger than what we saw
    return max(0, said - before)


def merge_failures(known: list[Object], new: tuple[Object, ...]) -> list[Object]:
    """The newest failures of both, oldest first."""
    return _union(known, new, ("attempt", "ordinal", "rank", "pod"))[-FAILURES:]


def with_evidence(status: Object, failures: tuple[Object, ...], crashes: int) -> Object:
    """`status` with what the pods show where no agent could report: at least so many restarts in place, and why."""
    sums = dict.fromkeys(COUNTERS, 0) | (status.get("restarts") or {})
    sums |= {name: max(sums[name], crashes) for name in ("inPlace", "counted")}
    sums["total"] = sums["inPlace"] + sums["pod"]
    return {**status, "restarts": sums, "failures": merge_failures(status.get("failures") or [], failures)}


def _seen(seen: Object, report: Report) -> Object:
    """What to compare with next time."""
    if report.start_time is None:
        return seen
    same = seen.get("startTime") == report.start_time
    floor = seen if same else {}  # an answer that was overtaken by a newer one must not be counted again later
    new: Object = {name: max(report.restarts.get(name, 0), floor.get(name, 0)) for name in COUNTERS}
    new["attempt"] = max(report.attempt, floor.get("attempt", 0))
    new["productiveSeconds"] = max(report.productive_seconds, floor.get("productiveSeconds", 0.0))
    new["startTime"] = report.start_time
    return new | ({"eventTime": seen["eventTime"]} if "eventTime" in seen else {})


def _union(known: list[Object], new: tuple[Object, ...], key: tuple[str, ...]) -> list[Object]:
    """Both lists by `key`; of two with the same key the newer one, which knows more; in order of attempt and time."""
    by_key = {tuple(item.get(name) for name in key): item for item in (*known, *new)}
    return sorted(by_key.values(), key=lambda item: (item.get("attempt", 0), str(item.get("time", ""))))
