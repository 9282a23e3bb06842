"""Adds the agents' attempts, restarts, failures and recoveries to those of the status.

The agents keep their history through every restart, and lose it only with the last of their pods (a
suspension, a lost cluster). The status therefore keeps sums of its own and, in `status.agent`, what
the agents last reported: only the difference is added. No counter ever decreases.
"""

from __future__ import annotations

from dtj_core.api.status import FAILURES, RECOVERIES
from dtj_core.plan import container_oom
from dtj_core.plan.agent_report import Report
from dtj_core.plan.model import Object

COUNTERS = ("inPlace", "pod", "counted")
# The fields that tell one failure from another.
IDENTITY = ("attempt", "ordinal", "rank", "pod")


def merge(status: Object, report: Report) -> Object:
    """Returns `status` with what `report` adds to it."""
    seen: Object = status.get("agent") or {}
    sums: Object = status.get("restarts") or {}
    counters = {
        name: sums.get(name, 0) + growth(report, seen, report.restarts.get(name, 0), seen.get(name, 0))
        for name in COUNTERS
    }
    productive = growth(report, seen, report.productive_seconds, seen.get("productiveSeconds", 0.0))
    merged = {
        **status,
        "attempt": max(status.get("attempt", 0), report.attempt),
        "restarts": {"total": counters["inPlace"] + counters["pod"], **counters},
        "productiveSeconds": round(status.get("productiveSeconds", 0.0) + productive, 3),
        "agent": _seen(seen, report),
    }
    known = status.get("failures") or []
    failures = merge_failures(known, (*_unknown(known, report.earlier_failures), *report.failures))
    if failures:
        merged["failures"] = failures
    recoveries = _union(status.get("recoveries") or [], report.recoveries, ("attempt",))[-RECOVERIES:]
    if recoveries:
        merged["recoveries"] = recoveries
    return merged


def _unknown(known: list[Object], failures: tuple[Object, ...]) -> tuple[Object, ...]:
    """Returns those of the `failures` that `known` does not have for the same reason."""
    keys = (*IDENTITY, "reason")
    seen = [[failure.get(key) for key in keys] for failure in known]
    return tuple(failure for failure in failures if [failure.get(key) for key in keys] not in seen)


def growth(report: Report, seen: Object, reported: float, before: float) -> float:
    """Returns by how much a counter of the agents has grown since `seen` was written."""
    if report.start_time is None and not report.from_outcome:
        return 0  # no attempt yet, nothing to count
    if report.start_time is not None and report.start_time != seen.get("startTime", report.start_time):
        return reported  # another memory, which began at 0
    if report.start_time is None and reported < before:
        # An outcome does not name the memory that it is from, but a smaller counter is from a newer
        # one.
        return reported
    return max(0, reported - before)


def merge_failures(known: list[Object], new: tuple[Object, ...]) -> list[Object]:
    """Returns the newest failures of both, oldest first."""
    return _union(known, new, IDENTITY)[-FAILURES:]


def with_evidence(status: Object, failures: tuple[Object, ...], crashes: int) -> Object:
    """Returns `status` with the evidence of the pods where no agent could report.

    Restarts in place become at least `crashes`.
    """
    sums = dict.fromkeys(COUNTERS, 0) | (status.get("restarts") or {})
    sums |= {name: max(sums[name], crashes) for name in ("inPlace", "counted")}
    sums["total"] = sums["inPlace"] + sums["pod"]
    return {**status, "restarts": sums, "failures": merge_failures(status.get("failures") or [], failures)}


def _seen(seen: Object, report: Report) -> Object:
    """Returns what the next report is compared with."""
    if report.start_time is None:
        return seen
    same = seen.get("startTime") == report.start_time
    # A stale answer, overtaken by a newer one, must not lower what was seen: the difference would
    # count twice.
    floor = seen if same else {}
    new: Object = {name: max(report.restarts.get(name, 0), floor.get(name, 0)) for name in COUNTERS}
    new["attempt"] = max(report.attempt, floor.get("attempt", 0))
    new["productiveSeconds"] = max(report.productive_seconds, floor.get("productiveSeconds", 0.0))
    new["startTime"] = report.start_time
    return new | ({"eventTime": seen["eventTime"]} if "eventTime" in seen else {})


def _union(known: list[Object], new: tuple[Object, ...], key: tuple[str, ...]) -> list[Object]:
    """Returns both lists merged by `key`, in order of attempt and time.

    The newer one of two equal keys wins, because it knows more. Only the kubelet knows more than
    the agents.
    """
    by_key: dict[tuple[object, ...], Object] = {}
    for item in (*known, *new):
        identity = tuple(item.get(name) for name in key)
        by_key[identity] = container_oom.keep_explanation(by_key.get(identity, {}), item)
    return sorted(by_key.values(), key=lambda item: (item.get("attempt", 0), str(item.get("time", ""))))
