"""Ranks and backend follow from known accelerators. For all others the user decides."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_core.plan import plan
from dtj_core.plan.model import Observed
from tests.unit.plan.objects import NOW, SETTINGS, condition, job


def asking(name: str, amount: Any = 8, kind: str = "limits", **spec: Any) -> Any:
    container = {"name": "trainer", "resources": {kind: {"cpu": 4, name: amount}}}
    return plan(job(template={"spec": {"containers": [container]}}, **spec), Observed(), NOW, SETTINGS)


def decided(wanted: Any) -> tuple[str, str]:
    """Returns ranks per pod and backend, as in the agent's environment."""
    body = next(action.body for action in wanted.actions if action.body["kind"] == "StatefulSet")
    env = {entry["name"]: entry.get("value") for entry in body["spec"]["template"]["spec"]["containers"][0]["env"]}
    return env["DTJ_PROCESSES_PER_POD"], env["DTJ_BACKEND"]


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "amd.com/gpu"])
@pytest.mark.parametrize("amount", [8, "8"])
@pytest.mark.parametrize("kind", ["limits", "requests"])
def test_known_gpus_set_the_number_of_ranks_and_use_nccl(name: str, amount: Any, kind: str) -> None:
    assert decided(asking(name, amount, kind)) == ("8", "nccl")


COUNTED = ["habana.ai/gaudi", "nvidia.com/mig-1g.5gb", "gpu.intel.com/i915", "gpu.intel.com/xe"]
UNCOUNTED = [
    "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb.shared", "gpu.intel.com/millicores", "aws.amazon.com/neuroncore",
    "google.com/tpu", "huawei.com/Ascend910",
]  # fmt: skip
OTHERS = [*COUNTED, *UNCOUNTED]


def undecided(wanted: Any) -> str:
    """Returns the message of a job that creates no children, because it must decide something."""
    assert wanted.actions == ()
    running = condition(wanted.status, "Running")
    assert (running["status"], running["reason"]) == ("False", "AcceleratorUndecided")
    assert [(event.type, event.reason) for event in wanted.events] == [("Warning", "AcceleratorUndecided")]
    return str(running["message"])


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("amount", [8, "8"])
def test_counted_accelerator_sets_the_ranks_and_leaves_the_backend_to_the_job(name: str, amount: Any) -> None:
    assert decided(asking(name, amount, backend="gloo")) == ("8", "gloo")
    message = undecided(asking(name, amount))
    assert f"requests {name}, for which there is no default: set spec.backend (" in message


@pytest.mark.parametrize("name", UNCOUNTED)
@pytest.mark.parametrize(
    ("spec", "missing"),
    [
        ({}, "set spec.processesPerPod (or spec.processesFrom) and spec.backend"),
        ({"backend": "gloo"}, "set spec.processesPerPod (or spec.processesFrom) ("),
        ({"processesPerPod": 8}, "set spec.backend ("),
    ],
    ids=["nothing", "backend", "processes"],
)
def test_other_accelerator_without_ranks_and_backend_creates_no_children(name: str, spec: Any, missing: str) -> None:
    message = undecided(asking(name, **spec))
    assert name in message
    assert missing in message


def test_slices_of_two_sizes_leave_the_ranks_to_the_job() -> None:
    limits = {"nvidia.com/mig-1g.5gb": 2, "nvidia.com/mig-2g.10gb": 1}
    wanted = plan(job(resources={"limits": limits}, backend="gloo"), Observed(), NOW, SETTINGS)
    assert "spec.processesPerPod (or spec.processesFrom)" in undecided(wanted)
    limits.pop("nvidia.com/mig-2g.10gb")
    assert decided(plan(job(resources={"limits": limits}, backend="gloo"), Observed(), NOW, SETTINGS)) == ("2", "gloo")


def test_gpus_beside_another_accelerator_leave_the_ranks_to_the_job() -> None:
    resources = {"limits": {"nvidia.com/gpu": 1, "nvidia.com/mig-1g.5gb": 2}}
    wanted = plan(job(resources=resources, backend="nccl"), Observed(), NOW, SETTINGS)
    assert "spec.processesPerPod" in undecided(wanted)


@pytest.mark.parametrize("name", ["aws.amazon.com/neuroncore", "example.com/npu", "nvidia.com/gpu.shared", "cpu"])
def test_any_resource_sets_the_ranks_if_the_job_names_it(name: str) -> None:
    assert decided(asking(name, 2, processesFrom=name, backend="gloo")) == ("2", "gloo")


@pytest.mark.parametrize("amount", [0, "500m"])
def test_named_resource_without_a_whole_number_creates_no_children(amount: Any) -> None:
    message = undecided(asking("example.com/npu", amount, processesFrom="example.com/npu", backend="gloo"))
    assert "spec.processesFrom names example.com/npu" in message
    assert "spec.resources.limits" in message


@pytest.mark.parametrize("name", OTHERS)
def test_other_accelerator_with_ranks_and_backend_creates_children(name: str) -> None:
    assert decided(asking(name, processesPerPod=2, backend="gloo")) == ("2", "gloo")


@pytest.mark.parametrize(
    "name", ["memory", "rdma/hca_shared_devices_a", "vpc.amazonaws.com/efa", "hugepages-2Mi", "example.com/x"]
)
def test_other_resources_leave_the_defaults(name: str) -> None:
    assert decided(asking(name)) == ("1", "gloo")


def test_accelerator_with_amount_zero_leaves_the_defaults() -> None:
    assert decided(asking("habana.ai/gaudi", "0")) == ("1", "gloo")
