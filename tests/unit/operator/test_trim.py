"""Trimmed objects keep all that the planner reads, and little else.

The simulator plans from trimmed objects only.
"""

from __future__ import annotations

import json
from typing import Any

from dtj_contract import names
from dtj_core.plan.node_signs import SickNodeSettings, Sign
from dtj_operator.kube.cache.store import is_same
from dtj_operator.kube.cache.trim import LAST_APPLIED, trim_job, trim_node, trim_pod, trim_service, trim_stateful_set

METADATA: Any = {
    "name": "j-0",
    "namespace": "ns",
    "uid": "u",
    "resourceVersion": "7",
    "generateName": "j-",
    "labels": {names.LABEL_JOB: "j", "team": "a"},
    "annotations": {names.ANNOTATION_AVOIDED_NODES: "n1", "other": "x" * 1000},
    "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "j", "uid": "s", "controller": True}],
    "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}],
}


def test_pod_keeps_where_it_is_and_how_its_containers_do() -> None:
    env = [{"name": names.ENV_JOB_UID, "value": "u1"}, {"name": "OTHER", "value": "1"}]
    limits = {"limits": {"memory": "1Gi"}}
    container = {"name": "trainer", "image": "i", "command": ["x"], "env": env, "resources": limits}
    claim = {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}
    spec = {"nodeName": "n", "containers": [container], "volumes": [{"name": "e", "emptyDir": {}}, claim]}
    condition = {"type": "Ready", "status": "True", "lastProbeTime": None, "lastTransitionTime": "t"}
    state = {"name": "trainer", "state": {"running": {"startedAt": "t"}}, "containerID": "c", "imageID": "i"}
    status = {"phase": "Running", "podIP": "1", "podIPs": [{"ip": "1"}], "conditions": [condition]}
    given = {"metadata": METADATA, "spec": spec, "status": status | {"containerStatuses": [state]}}
    before = json.dumps(given)
    assert trim_pod(given) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "j-0",
            "namespace": "ns",
            "uid": "u",
            "resourceVersion": "7",
            "labels": {names.LABEL_JOB: "j"},
            "annotations": {names.ANNOTATION_AVOIDED_NODES: "n1"},
            "ownerReferences": [{"kind": "StatefulSet", "name": "j", "uid": "s", "controller": True}],
        },
        "spec": {
            "nodeName": "n",
            "containers": [{"name": "trainer", "env": env[:1], "resources": limits}],
            "volumes": [claim],
        },
        "status": {
            "phase": "Running",
            "podIP": "1",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "t"}],
            "containerStatuses": [{"name": "trainer", "state": {"running": {"startedAt": "t"}}}],
        },
    }
    assert json.dumps(given) == before, "the given object is as it was"


def test_pod_that_the_scheduler_has_not_seen_has_no_status_yet() -> None:
    assert trim_pod({"metadata": METADATA})["status"] == {}


def test_job_keeps_its_whole_spec_and_status() -> None:
    annotations = {LAST_APPLIED: "{}", "mine": "1"}
    job = {"metadata": METADATA | {"annotations": annotations}, "spec": {"template": {"x": [1]}}, "status": {"a": None}}
    kept = trim_job(job)
    assert (kept["spec"], kept["status"], kept["kind"]) == (job["spec"], job["status"], names.KIND)
    assert kept["metadata"]["annotations"] == {"mine": "1"}
    assert kept["metadata"]["labels"] == METADATA["labels"]
    assert "managedFields" not in kept["metadata"]
    assert "annotations" not in trim_job({"metadata": {"annotations": {LAST_APPLIED: "{}"}}})["metadata"]


def test_stateful_set_keeps_its_template_for_repairs_and_its_observed_generation() -> None:
    template = {"spec": {"containers": [{"name": "trainer", "args": ["a"]}], "futureField": 1}}
    given = {"metadata": METADATA, "spec": {"replicas": 2, "template": template}, "status": {"replicas": 2}}
    kept = trim_stateful_set(given | {"status": {"replicas": 2, "observedGeneration": 3}})
    assert kept["spec"] == given["spec"]
    assert kept["status"] == {"observedGeneration": 3}
    assert kept["kind"] == "StatefulSet"


def test_service_keeps_what_agents_depend_on() -> None:
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"a": "b"}, "ports": [{"port": 1}]}
    kept = trim_service({"metadata": METADATA, "spec": spec})["spec"]
    assert kept == {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"a": "b"}}


def test_only_the_version_makes_no_difference() -> None:
    pod = trim_pod({"metadata": METADATA})
    assert is_same(pod, trim_pod({"metadata": METADATA | {"resourceVersion": "8"}}))
    assert not is_same(pod, trim_pod({"metadata": METADATA | {"deletionTimestamp": "t"}}))
    assert not is_same(pod, trim_pod({"metadata": METADATA, "status": {"phase": "Failed"}}))


def node(heartbeat: str, status: str = "False", **spec: Any) -> Any:
    """Returns a node as a kubelet writes it every few minutes."""
    conditions = [
        {"type": kind, "status": status, "lastHeartbeatTime": heartbeat, "reason": "r"}
        for kind in ("Ready", "XidCriticalError")
    ]
    images = [{"names": [f"image-{number}"], "sizeBytes": 10**9} for number in range(50)]
    labels = {f"feature.node.kubernetes.io/cpu-{number}": "true" for number in range(80)}
    metadata = {"name": "w1", "uid": "u", "resourceVersion": heartbeat, "labels": labels, "managedFields": [{}]}
    return {"metadata": metadata, "spec": spec, "status": {"conditions": conditions, "images": images}}


def test_healthy_node_keeps_its_name_alone_and_a_heartbeat_changes_nothing() -> None:
    settings = SickNodeSettings()
    kept = trim_node(node("7"), settings)
    assert kept == {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "w1", "uid": "u", "resourceVersion": "7"},
    }  # fmt: skip
    assert is_same(kept, trim_node(node("8"), settings))


def test_sick_node_keeps_its_signs() -> None:
    kept = trim_node(node("7", "True", unschedulable=True), SickNodeSettings())
    xid = Sign("condition XidCriticalError", "condition XidCriticalError is True (r)")
    assert (kept["signs"], kept["takesPods"]) == ((xid, Sign("cordon", "it is cordoned")), False)
    assert is_same(kept, trim_node(node("8", "True", unschedulable=True), SickNodeSettings()))
    assert not is_same(kept, trim_node(node("9"), SickNodeSettings()))
