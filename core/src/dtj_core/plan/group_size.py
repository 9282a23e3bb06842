"""The number of pods that the StatefulSet has: replicas and spares, and how an elastic job is scaled.

A larger size takes effect at once: the new pods start, and the group takes them in. A smaller one is
handed over to the agents first (operator_message.py). The StatefulSet shrinks once the leader's page
shows that no pod that has to go works any more, or after SHRINK_SECONDS whatever the agents do.
"""

from __future__ import annotations

from dtj_contract import agent_status
from dtj_core.plan.agent_report import Report
from dtj_core.plan.job import Job
from dtj_core.plan.model import Object
from dtj_core.plan.times import rfc3339, unix

SHRINK_SECONDS = 60.0


def wanted_pods(job: Job, child: Object, report: Report | None, status: Object, now: float) -> int:
    """Returns the replicas that the StatefulSet `child` should have now."""
    present = _replicas(child)
    if not is_shrinking(job, child) or _have_left(job, report):
        return job.pod_count
    since = unix(status.get("shrinkTime"))
    return job.pod_count if since is not None and now - since >= SHRINK_SECONDS else present


def is_shrinking(job: Job, child: Object) -> bool:
    """Returns whether an elastic job has more pods than its spec."""
    return job.spec.elastic is not None and _replicas(child) > job.pod_count


def with_shrink_time(status: Object, job: Job, child: Object, now: float) -> Object:
    """Returns `status` with the time since which pods have to go."""
    others = {name: value for name, value in status.items() if name != "shrinkTime"}
    if not is_shrinking(job, child):
        return others
    is_known = job.status.get("observedGeneration") == job.generation  # another spec may have another size
    return others | {"shrinkTime": status["shrinkTime"] if is_known and "shrinkTime" in status else rfc3339(now)}


def until_shrunk(status: Object, now: float) -> float | None:
    """Returns the seconds until the StatefulSet shrinks at the latest; None if it may do so now."""
    since = unix(status.get("shrinkTime"))
    left = since + SHRINK_SECONDS - now if since is not None else 0.0
    return left if left > 0 else None


def _have_left(job: Job, report: Report | None) -> bool:
    """Returns whether the leader reports that no pod that has to go works."""
    if report is None or report.from_follower or report.is_searching:
        return False
    if report.phase not in (agent_status.RUNNING, agent_status.RENDEZVOUS):
        return False
    return all(ordinal < job.pod_count for ordinal in report.busy)


def _replicas(child: Object) -> int:
    replicas = child["spec"].get("replicas", 1)
    return replicas if isinstance(replicas, int) else 1
