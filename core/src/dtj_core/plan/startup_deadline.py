"""The deadline of a start (startupDeadlineSeconds): when a job that has not begun to train fails.

The clock runs from the job's start or resumption (`status.startTime`), and stands still while the
job is suspended. The clock stops for good when the agents begin their first attempt since then,
because all pods are there and all ranks have been started. Later losses are bounded by
activeDeadlineSeconds and by the restart budget.

An operator that was away can't know from the clock whether the group has trained meanwhile. A job
therefore fails only on proof that no attempt has begun: so many original pods of the StatefulSet have never
run that too few are left for an attempt, or an original pod whose agent coordinates and remembers no
attempt. Without proof nothing is judged, and the condition still names what the job waits for.
"""

from __future__ import annotations

from collections.abc import Callable

from dtj_contract import agent_status
from dtj_contract.names import Reason
from dtj_core.plan import children
from dtj_core.plan.agent_report import Report
from dtj_core.plan.job import Job
from dtj_core.plan.job_status import has_started, memory_of_run
from dtj_core.plan.model import Object, Observed
from dtj_core.plan.outcome import JobResult
from dtj_core.plan.pod_waits import Cause
from dtj_core.plan.pods import never_ran, ordinal, running_count
from dtj_core.plan.times import unix

# The StatefulSet's controller creates all pods at once. A later pod may be a replacement.
ORIGINAL_SECONDS = 30.0


def until_deadline(job: Job, status: Object, now: float) -> float | None:
    """Returns the seconds until the deadline; None if there is none, or the group has begun."""
    limit, started = job.spec.startup_deadline_seconds, unix(status.get("startTime"))
    if limit is None or started is None or _has_begun(job, status, None):
        return None
    return started + limit - now


def deadline_exceeded(
    job: Job,
    observed: Observed,
    pods: tuple[Object, ...],
    status: Object,
    report: Report | None,
    find_wait: Callable[[], Cause | None],
    now: float,
) -> JobResult | None:
    """Returns the failure of a job that has not begun to train in time.

    `find_wait` returns what the job waits for, which takes long with many pods.
    """
    left = until_deadline(job, status, now)
    if left is None or left > 0 or _has_begun(job, status, report):
        return None
    if children.has_stateful_set(job, observed) and not _is_proven(job, observed.stateful_set or {}, pods, report):
        return None
    waits = find_wait()
    detail = f"; it waited for this: {waits.reason}: {waits.message}" if waits is not None else ""
    message = (
        f"not all ranks were started within spec.startupDeadlineSeconds ({job.spec.startup_deadline_seconds} s) after "
        f"the job was started or resumed{detail}"
    )
    return JobResult(kind="Failed", reason=Reason.STARTUP_DEADLINE_EXCEEDED, message=message)


def _has_begun(job: Job, status: Object, report: Report | None) -> bool:
    """Returns whether the group has begun an attempt since the job was started or resumed."""
    if has_started(job.status) or "startTime" in memory_of_run(status):
        return True
    return report is not None and (report.start_time is not None or report.phase != agent_status.RENDEZVOUS)


def _is_proven(job: Job, child: Object, pods: tuple[Object, ...], report: Report | None) -> bool:
    """Returns whether an observation proves that the group has not begun."""
    made = unix(child["metadata"].get("creationTimestamp"))
    if job.spec.elastic is not None and running_count(pods, job.trainer_container) >= job.least_pods:
        return False  # the agents begin without the others
    never = 0
    for pod in pods:
        created = unix(pod["metadata"].get("creationTimestamp"))
        if made is None or created is None or created > made + ORIGINAL_SECONDS:
            continue
        if report is not None and _reports(report, pod):
            return True
        never += never_ran(pod, job.trainer_container)
    return never > job.pod_count - job.least_pods


def _reports(report: Report, pod: Object) -> bool:
    """Returns whether the report is from the agent of this pod, and that agent coordinates."""
    if report.from_follower or report.is_searching:
        return False
    return report.leader == pod["metadata"]["name"] if report.leader else ordinal(pod) == 0
