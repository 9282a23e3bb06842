"""PodGroups of gang schedulers: one for each job, before its pods, of the smallest group that can train."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_core.plan import plan
from dtj_core.plan.model import Apply, Observed
from tests.unit.plan.objects import NOW, SETTINGS, UID, applied, job


def test_scheduler_plugins_gets_group_label_and_scheduler() -> None:
    made = applied(gang={"podGroup": "SchedulerPlugins"})
    group, template = made["PodGroup"], made["StatefulSet"]["spec"]["template"]
    assert group["apiVersion"] == "scheduling.x-k8s.io/v1alpha1"
    assert group["spec"] == {"minMember": 3}
    assert [owner["uid"] for owner in group["metadata"]["ownerReferences"]] == [UID]
    assert template["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == group["metadata"]["name"]
    assert template["spec"]["schedulerName"] == "scheduler-plugins-scheduler"


def test_volcano_gets_group_annotation_queue_and_scheduler() -> None:
    made = applied(gang={"podGroup": "Volcano", "queue": "research"})
    group, template = made["PodGroup"], made["StatefulSet"]["spec"]["template"]
    assert group["apiVersion"] == "scheduling.volcano.sh/v1beta1"
    assert group["spec"] == {"minMember": 3, "queue": "research"}
    assert template["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == group["metadata"]["name"]
    assert template["spec"]["schedulerName"] == "volcano"


@pytest.mark.parametrize(
    "spec",
    [
        {"priorityClassName": "urgent"},
        {"template": {"spec": {"priorityClassName": "urgent", "containers": [{"name": "trainer"}]}}},
    ],
    ids=["shorthand", "template"],
)
def test_priority_is_that_of_the_pods_where_volcano_reads_it(spec: dict[str, Any]) -> None:
    assert applied(gang={"podGroup": "Volcano"}, **spec)["PodGroup"]["spec"]["priorityClassName"] == "urgent"
    plugins = applied(gang={"podGroup": "SchedulerPlugins"}, **spec)
    assert plugins["PodGroup"]["spec"] == {"minMember": 3}, "its PodGroup has no such field"


def test_pod_group_is_created_before_the_pods() -> None:
    actions = plan(job(gang={"podGroup": "Volcano"}), Observed(), NOW, SETTINGS).actions
    kinds = [action.body["kind"] for action in actions if isinstance(action, Apply)]
    assert kinds.index("PodGroup") < kinds.index("StatefulSet")


@pytest.mark.parametrize(
    ("spec", "members"),
    [({}, 3), ({"spares": 2}, 3), ({"elastic": {"minReplicas": 2}}, 2)],
    ids=["plain", "spares", "elastic"],
)
def test_members_are_the_pods_that_an_attempt_needs(spec: dict[str, Any], members: int) -> None:
    assert applied(gang={"podGroup": "Volcano"}, **spec)["PodGroup"]["spec"]["minMember"] == members


@pytest.mark.parametrize(
    ("gang", "scheduler"),
    [({}, "mine"), ({"schedulerName": "other"}, "other")],
    ids=["of the template", "of the gang"],
)
def test_scheduler_of_the_user_is_kept(gang: dict[str, Any], scheduler: str) -> None:
    template = {"spec": {"schedulerName": "mine", "containers": [{"name": "trainer"}]}}
    made = applied(gang={"podGroup": "Volcano"} | gang, template=template)
    assert made["StatefulSet"]["spec"]["template"]["spec"]["schedulerName"] == scheduler
