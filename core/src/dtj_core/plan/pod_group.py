"""The PodGroup of a gang scheduler, and how the pods refer to it (spec.gang)."""

from __future__ import annotations

from dtj_contract import names
from dtj_core.plan.job import Job
from dtj_core.plan.model import Object

API_VERSIONS = {"SchedulerPlugins": "scheduling.x-k8s.io/v1alpha1", "Volcano": "scheduling.volcano.sh/v1beta1"}
SCHEDULERS = {"SchedulerPlugins": "scheduler-plugins-scheduler", "Volcano": "volcano"}


def pod_group(job: Job, metadata: Object) -> Object | None:
    """Returns the PodGroup of a job; None without spec.gang. `metadata`: as of every child.

    Its size is that of the smallest group that can train: spares and elastic pods are not waited for.
    """
    gang = job.spec.gang
    if gang is None:
        return None
    spec: Object = {"minMember": job.least_pods}
    if gang.queue is not None:
        spec["queue"] = gang.queue
    priority = (job.spec.merged_template.get("spec") or {}).get("priorityClassName")
    if gang.pod_group == "Volcano" and priority:
        # Volcano orders gangs by their PodGroups, whatever the priority of the pods.
        spec["priorityClassName"] = priority
    return {
        "apiVersion": API_VERSIONS[gang.pod_group],
        "kind": "PodGroup",
        "metadata": metadata | {"name": group_name(job)},
        "spec": spec,
    }


def group_name(job: Job) -> str:
    """Returns a name that nobody else's PodGroup is likely to have, because ours is applied by force."""
    return f"{job.name}-dtj-gang"


def join(job: Job, template: Object) -> None:
    """Adds to a pod template what makes its pods members of the job's PodGroup."""
    gang = job.spec.gang
    if gang is None:
        return
    metadata, pod = template["metadata"], template["spec"]
    if gang.pod_group == "Volcano":
        named = {names.ANNOTATION_VOLCANO_GROUP: group_name(job)}
        metadata["annotations"] = (metadata.get("annotations") or {}) | named
    else:
        metadata["labels"] = (metadata.get("labels") or {}) | {names.LABEL_POD_GROUP: group_name(job)}
    pod["schedulerName"] = gang.scheduler_name or pod.get("schedulerName") or SCHEDULERS[gang.pod_group]
