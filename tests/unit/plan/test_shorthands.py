"""Shorthands become fields of the pod template, and jobs without them keep their template."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dtj_contract import names
from dtj_core.plan import plan
from dtj_core.plan.job import Job
from dtj_core.plan.model import Apply, Observed
from tests.unit.api.specs_shorthands import EVERYTHING
from tests.unit.plan.objects import NOW, SETTINGS, agent, applied, job, pods, service, started, template

FROZEN = json.loads((Path(__file__).parent / "frozen_templates.json").read_text())


def pod(**spec: Any) -> Any:
    return applied(**spec)["StatefulSet"]["spec"]["template"]["spec"]


def own_env(container: Any) -> list[Any]:
    return [item for item in container["env"] if not item["name"].startswith(("DTJ_", "HOME", "USER"))]


@pytest.mark.parametrize("case", FROZEN)
def test_pod_template_of_a_job_without_shorthands_is_as_before_them(case: str) -> None:
    """A difference would recreate pods that a repair touches, and is never intended."""
    children = applied(**FROZEN[case]["spec"])
    assert children["StatefulSet"]["spec"]["template"] == FROZEN[case]["template"]
    assert children["Service"]["spec"] == FROZEN[case]["service"]


@pytest.mark.parametrize("case", FROZEN)
def test_running_job_of_an_earlier_version_is_left_as_it_is(case: str) -> None:
    spec = FROZEN[case]["spec"]
    body, child = started(**spec)
    annotation = child["metadata"]["annotations"][names.ANNOTATION_SPEC_HASH]
    child["metadata"]["annotations"][names.ANNOTATION_SPEC_HASH] = annotation.partition(",processesFrom=")[0]
    count = child["spec"]["replicas"]
    seen = Observed(stateful_set=child, service=service(), pods=pods(count), agent=agent())
    assert plan(body, seen, NOW, SETTINGS).actions == ()


def test_shorthands_fill_the_template() -> None:
    found = pod(**EVERYTHING)
    (trainer,) = found["containers"]
    interface = [{"name": name, "value": "ib0,ib1"} for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")]
    assert own_env(trainer) == EVERYTHING["env"] + interface
    assert trainer["envFrom"] == EVERYTHING["envFrom"]
    assert trainer["resources"] == EVERYTHING["resources"]
    for field in ("nodeSelector", "priorityClassName", "imagePullSecrets"):
        assert found[field] == EVERYTHING[field]
    assert found["tolerations"][0] == EVERYTHING["tolerations"][0]
    assert (found["hostNetwork"], found["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert {"name": "dtj-shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}} in found["volumes"]


def test_shorthands_make_the_template_that_its_own_fields_make() -> None:
    short = {"resources": {"limits": {"nvidia.com/gpu": 8}}, "nodeSelector": {"a": "b"}, "env": [{"name": "A"}]}
    container = {"resources": short["resources"], "env": short["env"]}
    assert pod(**short) == pod(**template({"nodeSelector": {"a": "b"}}, **container))


def test_shorthands_leave_the_rest_of_the_template_and_its_sidecars() -> None:
    containers = [{"name": "log", "image": "l", "env": [{"name": "A"}]}, {"name": "trainer", "workingDir": "/src"}]
    written = {"spec": {"containers": containers, "runtimeClassName": "nvidia"}, "metadata": {"labels": {"a": "b"}}}
    found = pod(template=written, env=[{"name": "B", "value": "1"}])
    assert found["runtimeClassName"] == "nvidia"
    assert found["containers"][0]["env"] == [{"name": "A"}]
    assert found["containers"][1]["workingDir"] == "/src"
    assert own_env(found["containers"][1]) == [{"name": "B", "value": "1"}]
    assert "env" not in containers[1], "the stored job is not changed"


def test_interface_is_added_to_the_variables_of_the_template() -> None:
    found = pod(network={"interface": "eth0"}, **template(env=[{"name": "A", "value": "1"}]))["containers"][0]
    assert [item["name"] for item in own_env(found)] == ["A", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"]


def test_host_network_resolves_names_of_the_cluster() -> None:
    assert pod(network={"hostNetwork": True})["dnsPolicy"] == "ClusterFirstWithHostNet"


def test_pull_secrets_serve_the_agents_init_container_too() -> None:
    found = pod(imagePullSecrets=[{"name": "registry"}])
    assert found["imagePullSecrets"] == [{"name": "registry"}], "they hold for every container of a pod"
    assert found["initContainers"][0]["name"] == names.INIT_CONTAINER


def test_pull_secrets_of_the_installation_stand_behind_those_of_the_job() -> None:
    settings = replace(SETTINGS, agent_pull_secrets=("registry", "agents"))
    given = [{"name": "mine"}, {"name": "registry"}]
    cases = (({}, ["registry", "agents"]), ({"imagePullSecrets": given}, ["mine", "registry", "agents"]))
    for spec, expected in cases:
        wanted = plan(job(**spec), Observed(), NOW, settings)
        [found] = [a.body for a in wanted.actions if isinstance(a, Apply) and a.body["kind"] == "StatefulSet"]
        assert [each["name"] for each in found["spec"]["template"]["spec"]["imagePullSecrets"]] == expected


def test_gpus_of_the_shorthand_set_ranks_and_backend() -> None:
    spec = Job.from_object(job(resources={"limits": {"nvidia.com/gpu": "4"}})).spec
    assert (spec.processes, spec.resolved_backend) == (4, "nccl")


@pytest.mark.parametrize("field", ["env", "resources", "nodeSelector", "network", "shmSize", "tolerations"])
def test_changed_shorthand_of_a_suspended_job_recreates_the_pods(field: str) -> None:
    one, other = (Job.from_object(job(**spec)).spec_hash for spec in ({}, {field: EVERYTHING[field]}))
    assert one != other


def test_job_of_another_controller_is_left_alone() -> None:
    body = job(managedBy="kueue.x-k8s.io/multikueue")
    found = plan(body, Observed(), NOW, SETTINGS)
    assert (found.actions, found.status, found.events, found.requeue_after) == ((), {}, (), None)
    foreign = {"phase": "Complete", "conditions": [{"type": "Complete", "status": "True", "reason": "x"}]}
    ended = job(foreign, managedBy="kueue.x-k8s.io/multikueue", ttlSecondsAfterFinished=0)
    assert plan(ended, Observed(), NOW, SETTINGS).actions == ()


def test_job_that_names_the_operator_as_its_controller_runs() -> None:
    assert plan(job(managedBy=names.CONTROLLER), Observed(), NOW, SETTINGS).actions
