"""The claim of a claimTemplate, and pods on several nodes that wait for one claim."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_core.plan import plan
from dtj_core.plan.model import Apply, Observed
from dtj_core.plan.times import rfc3339
from tests.unit.plan.objects import NOW, SETTINGS, UID, applied, condition, container, job, pod, service, started


def with_claim(**fields: Any) -> Any:
    return {"checkpoint": {"volume": {"claimTemplate": {"size": "10Gi"} | fields}}}


def test_claim_is_created_before_the_pods_and_never_changed() -> None:
    actions = plan(job(**with_claim(storageClassName="nfs")), Observed(), NOW, SETTINGS).actions
    first, *others = (action for action in actions if isinstance(action, Apply))
    assert (first.body["kind"], first.if_missing) == ("PersistentVolumeClaim", True)
    assert [action.if_missing for action in others] == [False, False, False]
    assert first.body["metadata"]["name"] == "digits-checkpoints"
    assert first.body["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "10Gi"}},
        "storageClassName": "nfs",
    }


def test_pods_mount_the_claim() -> None:
    volumes = applied(**with_claim())["StatefulSet"]["spec"]["template"]["spec"]["volumes"]
    assert {"name": "dtj-checkpoint", "persistentVolumeClaim": {"claimName": "digits-checkpoints"}} in volumes


def test_only_a_claim_that_goes_with_the_job_is_owned_by_it() -> None:
    assert "ownerReferences" not in applied(**with_claim())["PersistentVolumeClaim"]["metadata"]
    (owner,) = applied(**with_claim(whenDeleted="Delete"))["PersistentVolumeClaim"]["metadata"]["ownerReferences"]
    assert owner["uid"] == UID


def test_job_with_its_own_claim_creates_none() -> None:
    assert "PersistentVolumeClaim" not in applied(checkpoint={"volume": {"claimName": "shared"}})


def waiting(ordinal: int, node: str, scheduled: Any) -> Any:
    volumes = [{"name": "dtj-checkpoint", "persistentVolumeClaim": {"claimName": "shared"}}]
    conditions = [
        {"type": "PodScheduled", "lastTransitionTime": rfc3339(NOW), **scheduled},
        {"type": "PodReadyToStartContainers", "status": "False"},
    ]
    creating = [container(waiting={"reason": "ContainerCreating"})]
    made = pod(ordinal, phase="Pending", conditions=conditions, containerStatuses=creating)
    made["metadata"]["creationTimestamp"] = rfc3339(NOW)
    return made | {"spec": {"nodeName": node, "volumes": volumes}}


def running(ordinal: int, node: str) -> Any:
    return pod(ordinal) | {"spec": waiting(ordinal, node, {})["spec"]}


CONFLICT = {"status": "False", "message": "0/2 nodes are available: 2 node(s) had volume node affinity conflict."}
TAINT = {"status": "False", "message": "0/2 nodes are available: 2 node(s) had untolerated taint."}


@pytest.mark.parametrize(
    ("third", "reason", "is_named"),
    [
        (waiting(2, "b", {"status": "True"}), "MountPending", True),
        (waiting(2, "a", {"status": "True"}), "MountPending", False),
        (waiting(2, "", CONFLICT), "Unschedulable", True),
        (waiting(2, "", TAINT), "Unschedulable", False),
    ],
    ids=["another node", "the same node", "a volume bound to a node", "another cause"],
)
def test_claim_that_several_nodes_wait_for_is_named_with_the_remedy(third: Any, reason: str, is_named: bool) -> None:
    stored, child = started(checkpoint={"volume": {"claimName": "shared"}})
    seen = Observed(stateful_set=child, service=service(), pods=(running(0, "a"), running(1, "a"), third))
    found = condition(plan(stored, seen, NOW + 61, SETTINGS).status, "Running")
    assert found["reason"] == reason
    hint = "need claim shared: if it is ReadWriteOnce, or its volume is bound to one node, use a ReadWriteMany claim"
    assert (hint in found["message"]) == is_named
