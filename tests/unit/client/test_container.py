"""The translation of a planned pod into a process of this machine."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dtj.errors import InputError
from dtj.local import container, pods
from dtj.local.command import admitted
from dtj_core.plan.children import stateful_set
from dtj_core.plan.job import Job
from dtj_core.plan.model import Settings

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PORTS = [5000, 5001]
WRITTEN: dict[str, Any] = {
    "apiVersion": "training.dtj.dev/v1alpha1",
    "kind": "DistributedTrainingJob",
    "metadata": {"name": "digits", "namespace": "team"},
    "spec": {
        "replicas": 2,
        "image": "x",
        "entrypoint": {
            "module": "train",
            "args": ["--data=/data/train", "--out", "/checkpoints/more", "--name", "/checkpointsx"],
        },
        "checkpoint": {"volume": {"claimName": "shared"}},
        "template": {"spec": {"containers": [{"name": "only"}]}},
    },
}


@pytest.fixture
def machine(tmp_path: Path) -> container.HostEnvironment:
    return container.HostEnvironment(
        job_uid="job-uid",
        python="/venv/bin/python",
        node="laptop",
        run_dir=tmp_path / "run",
        scratch_dir=tmp_path / "scratch",
        volumes_dir=tmp_path / "volumes",
        working_dir=tmp_path,
        environment={"HOME": "/home/jane", "RANK": "7", "DTJ_ATTEMPT": "9", "TOKEN": "t0ps3cret"},
    )


def rendered(machine: container.HostEnvironment, ordinal: int = 1, **trainer: Any) -> container.LocalContainer:
    written = {**WRITTEN, "spec": {**WRITTEN["spec"], "template": {"spec": {}}}}
    pod_spec = written["spec"]["template"]["spec"]
    pod_spec["containers"] = [{"name": "only", **trainer.pop("container", {})}]
    pod_spec |= trainer
    job = Job.from_object(admitted(written))
    child = stateful_set(job, Settings(agent_image="", master_key=b"k"), attempt_floor=1)
    child["metadata"]["uid"] = "set-uid"
    pod = pods.new_pod(child, ordinal, uid="pod-uid-0001", node=machine.node, now=NOW)
    return container.container(pod, machine, PORTS)


def test_agent_and_worker_run_with_this_python(machine: container.HostEnvironment) -> None:
    argv = rendered(machine).argv
    assert argv[:4] == ("/venv/bin/python", "-m", "dtj_agent", "--")
    assert argv[4:8] == ("/venv/bin/python", "-u", "-m", "train")


def test_mount_paths_become_folders_in_arguments_and_environment(machine: container.HostEnvironment) -> None:
    mount = {"volumeMounts": [{"name": "data", "mountPath": "/data", "subPath": "v1"}]}
    result = rendered(
        machine, container=mount, volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "big"}}]
    )
    shared = machine.volumes_dir / "shared"
    assert result.argv[8:] == (
        f"--data={machine.volumes_dir}/big/v1/train",
        "--out",
        f"{shared}/more",
        "--name",
        "/checkpointsx",
    )
    assert result.environment["DTJ_CHECKPOINT_DIR"] == f"{shared}/team/digits"
    assert result.environment["DTJ_SECRET_FILE"] == f"{machine.scratch_dir}/secret/key"
    assert {shared, machine.volumes_dir / "big/v1"} <= set(result.folders)


def test_two_lives_of_a_pod_do_not_share_an_emptydir(machine: container.HostEnvironment) -> None:
    state = rendered(machine).environment["DTJ_STATE_DIR"]
    assert state.startswith(f"{machine.scratch_dir}/1-pod-uid-")
    assert len("/tmp/dtj-12345678/1023-12345678/dtj-state/agent.sock") < 108, "a unix socket's path"


def test_peer_addresses_are_loopback_ports(machine: container.HostEnvironment) -> None:
    environment = rendered(machine, ordinal=1).environment
    assert environment["DTJ_DIE_WITH_PARENT"] == str(os.getpid())
    assert environment["DTJ_PEERS"] == "127.0.0.1:5000,127.0.0.1:5001"
    assert environment["DTJ_LISTEN"] == "127.0.0.1:5001"
    assert environment["GLOO_SOCKET_IFNAME"] == "lo"


def test_downward_api_values_are_filled_in(machine: container.HostEnvironment) -> None:
    environment = rendered(machine, ordinal=1).environment
    names = ("DTJ_ORDINAL", "DTJ_POD_NAME", "DTJ_POD_IP", "DTJ_NODE_NAME", "DTJ_LOCAL_POD")
    assert [environment[name] for name in names] == ["1", "digits-1", "127.0.0.1", "laptop", "job-uid/pod-uid-0001"]


def test_variables_of_an_outer_torchrun_or_dtj_are_not_inherited(machine: container.HostEnvironment) -> None:
    environment = rendered(machine).environment
    assert "RANK" not in environment
    assert "DTJ_ATTEMPT" not in environment


def test_variable_references_are_expanded_as_the_kubelet_does(machine: container.HostEnvironment) -> None:
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)-$(NONE)-$$(A)"}]
    assert rendered(machine, container={"env": env}).environment["B"] == "1-$(NONE)-$(A)"


def test_secret_value_comes_from_the_environment_or_is_requested(machine: container.HostEnvironment) -> None:
    def item(name: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", **more}}}

    assert rendered(machine, container={"env": [item("TOKEN")]}).environment["TOKEN"] == "t0ps3cret"
    assert "OTHER" not in rendered(machine, container={"env": [item("OTHER", optional=True)]}).environment
    with pytest.raises(InputError, match=r"env OTHER comes from secretKeyRef.*export OTHER before dtj run"):
        rendered(machine, container={"env": [item("OTHER")]})


def test_ignored_template_fields_are_reported() -> None:
    spec = {
        "nodeSelector": {"gpu": "yes"},
        "initContainers": [{"name": "fetch"}],
        "containers": [
            {
                "name": "trainer",
                "resources": {"limits": {"nvidia.com/gpu": 2, "memory": "1Gi"}},
                "envFrom": [{"secretRef": {"name": "s"}}],
                "volumeMounts": [{"name": "config", "mountPath": "/etc/config"}],
            },
            {"name": "sidecar"},
        ],
        "volumes": [{"name": "config", "configMap": {"name": "c"}}],
    }
    assert container.ignored_fields(spec, {}) == [
        "nodeSelector is ignored",
        "container sidecar is not started",
        "init container fetch is not run",
        "resource nvidia.com/gpu: 2 is not reserved",
        "envFrom is ignored: export those variables before dtj run",
        "volume config (configMap) is not mounted",
    ]
