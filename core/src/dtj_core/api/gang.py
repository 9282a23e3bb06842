"""`spec.gang`: pods that a gang scheduler places all together, or not at all."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import StringConstraints

from dtj_core.api.base_model import Model, Rule

_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"


class Gang(Model):
    """A PodGroup for the job, with as many members as an attempt needs: replicas, or elastic.minReplicas.

    The PodGroup is created before the pods and deleted with the job. The operator needs the right to create
    it: podGroups.enabled of the chart.
    """

    pod_group: Literal["SchedulerPlugins", "Volcano"]
    """Scheduler that reads the PodGroup. SchedulerPlugins: the coscheduling plugin of
    scheduler-plugins (scheduling.x-k8s.io/v1alpha1). Volcano: scheduling.volcano.sh/v1beta1."""
    scheduler_name: Annotated[str, StringConstraints(max_length=63, pattern=_NAME)] | None = None
    """Name of the scheduler. Default: schedulerName of the template, else scheduler-plugins-scheduler
    or volcano."""
    queue: Annotated[str, StringConstraints(max_length=63, pattern=_NAME)] | None = None
    """Queue of Volcano. Default: Volcano's own default."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.queue) || self.podGroup == 'Volcano'",
            message="only a PodGroup of Volcano has a queue: remove gang.queue, or use spec.queueName for Kueue",
            holds=lambda self: self.queue is None or self.pod_group == "Volcano",
            field="queue",
        ),
    )
