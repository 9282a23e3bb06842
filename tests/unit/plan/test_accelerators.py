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


OTHERS = [
    "habana.ai/gaudi", "nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared", "gpu.intel.com/i915",
    "aws.amazon.com/neuroncore", "google.com/tpu", "huawei.com/Ascend910",
]  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize(
    "spec", [{}, {"backend": "gloo"}, {"processesPerPod": 8}], ids=["nothing", "backend", "processes"]
)
def test_other_accelerator_without_ranks_and_backend_creates_no_children(name: str, spec: Any) -> None:
    wanted = asking(name, **spec)
    assert wanted.actions == ()
    running = condition(wanted.status, "Running")
    assert (running["status"], running["reason"]) == ("False", "AcceleratorUndecided")
    for part in (name, "spec.processesPerPod", "spec.backend"):
        assert part in running["message"]
    assert [(event.type, event.reason) for event in wanted.events] == [("Warning", "AcceleratorUndecided")]


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
