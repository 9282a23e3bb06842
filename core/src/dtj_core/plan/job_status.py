"""Facts that the stored status remembers, and their reset between two runs of the pods.

Control flow follows from observed objects and from fields of the status, not from reasons of
conditions. Two facts are exceptions: no object shows them any more when they are needed, and no
field of the status holds them. `is_stop_announced` and `has_children` read them from the reason of
condition Running. A third one, why a pod was lost, is read by running.py from condition Restarting.
A field of the status would be more direct. But a CRD that is older than the operator drops a new
field, and the operator would then forget that a stop was announced; conditions exist in every CRD.
"""

from __future__ import annotations

from dtj_contract import agent_status, names
from dtj_contract.names import Reason
from dtj_core.plan.agent_report import Report
from dtj_core.plan.conditions import condition_reason, is_true
from dtj_core.plan.job import Job
from dtj_core.plan.model import Object
from dtj_core.plan.progress import active_seconds

# Fields that hold for one run of the pods.
OF_A_RUN = ("startTime", "coordinator", "shrinkTime", "ownEvictions")
# Reasons of condition Running that announce the deletion of the pods.
STOPS = frozenset({Reason.JOB_SUSPENDED, Reason.EVICTED_BY_QUEUE, Reason.HALF_PLACED})


def of_present_spec(status: Object, job: Job) -> Object:
    """Returns `status` with what it shows of the spec."""
    queue = {} if job.spec.queue_name is None else {"queueName": job.spec.queue_name}
    others = {name: value for name, value in status.items() if name != "queueName"}
    return others | {"observedGeneration": job.generation} | queue


def has_started(status: Object) -> bool:
    """Returns whether the group was running or restarting when `status` was written."""
    return is_true(status, names.RUNNING) or is_true(status, names.RESTARTING)


def is_stop_announced(status: Object) -> bool:
    """Returns whether the operator has announced, or executed, the deletion of the pods.

    The announcement stays until new pods are created. A missing StatefulSet is no proof: somebody
    else may have deleted it, and then the clock of the deadline keeps running.
    """
    return condition_reason(status, names.RUNNING) in STOPS


def has_children(status: Object) -> bool:
    """Returns whether the children exist, or are being created together with `status`.

    startTime is no proof: the clock also runs while the API server rejects the children.
    """
    return "startTime" in status and condition_reason(status, names.RUNNING) != Reason.CHILD_REFUSED


def reset_between_runs(status: Object, job: Job, now: float) -> Object:
    """Returns `status` with the deadline's clock stopped, and without the pod's evictions.

    The agents' last report stays, because pods that somebody has orphaned keep it too: when they are
    adopted, only the difference is added.
    """
    active = active_seconds(status, now)
    memory = status.get("agent")
    status = {key: value for key, value in status.items() if key not in OF_A_RUN}
    if active:
        status["activeSeconds"] = round(active, 3)
    if memory is not None:
        status["agent"] = memory | {"ofEarlierRun": True}
    return status | replica_counts(job, 0)


def begin_again(status: Object, job: Job, now: float) -> Object:
    """Returns `status` of a job whose pods were deleted on purpose, and which is to run again."""
    if condition_reason(status, names.RUNNING) == Reason.HALF_PLACED:
        return renew_run(status, job, now)
    return reset_between_runs(status, job, now) if is_stop_announced(status) else status


def renew_run(status: Object, job: Job, now: float) -> Object:
    """Returns `status` of a job whose pods are created again without a pause of the deadline's clock."""
    kept = {key: status[key] for key in ("startTime", "activeSeconds") if key in status}
    reset = reset_between_runs(status, job, now)
    return {key: value for key, value in reset.items() if key != "activeSeconds"} | kept


def memory_of_run(status: Object) -> Object:
    """Returns what the agents of this run of the pods last reported; empty if they have begun no attempt."""
    memory: Object = status.get("agent") or {}
    return {} if memory.get("ofEarlierRun") else memory


def replica_counts(job: Job, ready: int, report: Report | None = None) -> Object:
    """Returns the numbers of pods. `ready`: of all pods that are ready, spares included."""
    wanted = job.spec.replicas
    working = min(ready, wanted)
    counts: Object = {"replicas": wanted, "readyReplicas": working, "ready": f"{working}/{wanted}"}
    if job.spec.spares:
        counts["spares"] = ready - working
    if job.spec.elastic is not None:
        # The scale subresource needs both: the present size, and the label of the pods.
        counts["selector"] = f"{names.LABEL_JOB}={job.name}"
        if report is not None and report.phase == agent_status.RUNNING and report.replicas:
            counts["replicas"] = report.replicas
    return counts
