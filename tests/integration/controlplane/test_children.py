"""A real API server accepts the children that the planner creates.

Every good job is tried, in a namespace that enforces "restricted".
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from dtj_core.plan import plan
from dtj_core.plan.model import Apply, Observed, Settings
from hack.cluster.controlplane import ControlPlane
from tests.integration.controlplane.support import Objects, change, wait_until
from tests.unit.api.specs import GOOD, checkpoint, job, template

SETTINGS = Settings(agent_image="dtj-operator:test", master_key=b"0" * 32)
UNKNOWN = "fields of the pod that nobody knows yet"
FOREIGN = "another controller"


def children(spec: dict[str, Any], namespace: str) -> list[dict[str, Any]]:
    body = job(spec | {"suspend": False})
    body["metadata"] |= {"namespace": namespace, "uid": "4f9c7d0e-0000-4000-8000-000000000000"}
    return [a.body for a in plan(body, Observed(), 1_790_000_000.0, SETTINGS).actions if isinstance(a, Apply)]


def apply(plane: ControlPlane, items: list[dict[str, Any]], *flags: str) -> subprocess.CompletedProcess[str]:
    command = [
        str(plane.bin_dir / "kubectl"),
        "--kubeconfig",
        str(plane.kubeconfig),
        "apply",
        "--server-side",
        *flags,
        "-f",
        "-",
    ]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("case", [case for case in GOOD if case not in (UNKNOWN, FOREIGN)])
def test_children_of_a_good_job_are_valid(case: str, plane: ControlPlane, namespace: str) -> None:
    items = children(GOOD[case], namespace)
    assert [item["kind"] for item in items if item["kind"] != "PersistentVolumeClaim"] == [
        "Secret", "Service", "StatefulSet",
    ]  # fmt: skip
    done = apply(plane, items, "--dry-run=server")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(items)


def test_unknown_field_is_rejected_by_name(plane: ControlPlane, namespace: str) -> None:
    done = apply(plane, children(GOOD[UNKNOWN], namespace), "--dry-run=server", "--validate=false")
    assert done.returncode == 1
    assert ".spec.template.spec.newIn2030: field not declared in schema" in done.stderr


def test_pods_are_admitted_where_restricted_is_enforced(plane: ControlPlane, namespace: str) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    change(plane, f"/api/v1/namespaces/{namespace}", lambda found: found["metadata"]["labels"].update(labels))
    spec = checkpoint() | {
        "replicas": 2,
        "template": template({"containers": [{"name": "trainer"}, {"name": "s", "image": "s"}]}),
    }
    made = children(spec, namespace)
    for child in made:
        child["metadata"].pop("ownerReferences")  # or the garbage collector would delete it
    done = apply(plane, made)
    assert done.returncode == 0, done.stderr
    objects = Objects(plane, namespace)
    pods = wait_until("both pods are created", lambda: len(found := objects.list("pods")) == 2 and found)
    assert {pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] for pod in pods} == {"0", "1"}


def test_applying_twice_changes_nothing(plane: ControlPlane, namespace: str) -> None:
    made = children(GOOD["the job of the design"], namespace)
    for child in made:
        child["metadata"].pop("ownerReferences")
    for _ in range(2):
        assert apply(plane, made, "--field-manager=dtj-operator").returncode == 0
    (stateful_set,) = Objects(plane, namespace).list("statefulsets")
    assert stateful_set["metadata"]["generation"] == 1
