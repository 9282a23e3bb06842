"""Ranks and backend follow from the accelerators that are known; of all others the user decides, and nothing is guessed."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_core.plan import plan
from dtj_core.plan.model import Observed
from tests.unit.plan.build import NOW, SETTINGS, condition, job


def asking(name: str, amount: Any = 8, kind: str = "limits", **spec: Any) -> Any:
    container = {"name": "trainer", "resources": {kind: {"cpu": 4, name: amount}}}
    return plan(job(template={"spec": {"containers": [container]}}, **spec), Observed(), NOW, SETTINGS)


def decided(wanted: Any) -> tuple[str, str]:
    """Ranks a pod and backend, as the agent gets them."""
    body = next(action.body for action in wanted.actions if action.body["kind"] == "StatefulSet")
    env = {entry["name"]: entry.get("value") for entry in body["spec"]["template"]["spec"]["containers"][0]["env"]}
    return env["DTJ_PROCESSES_PER_POD"], env["DTJ_BACKEND"]


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "amd.com/gpu"])
@pytest.mark.parametrize("amount", [8, "8"])
@pytest.mark.parametrize("kind", ["limits", "requests"])
def test_gpus_of_a_known_kind_are_counted_and_use_nccl(name: str, amount: Any, kind: str) -> None:
    assert decided(asking(name, amount, kind)) == ("8", "nccl")


OTHERS = [
    "habana.ai/gaudi", "nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared", "gpu.intel.com/i915", "aws.amazon.com/neuroncore",
    "google.com/tpu", "huawei.com/Ascend910",
]  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("spec", [{}, {"backend": "gloo"}, {"processesPerPod": 8}], ids=["nothing", "backend", "processes"])
def test_a_job_with_another_accelerator_is_not_made_until_both_are_decided(name: str, spec: Any) -> None:
    wanted = asking(name, **spec)
    assert wanted.actions == ()
    said = condition(wanted.status, "Running")
    assert (said["status"], said["reason"]) == ("False", "AcceleratorUndecided")
    for word in (name, "spec.processesPerPod", "spec.backend"):
        assert word in said["message"]
    assert [(event.type, event.reason) for event in wanted.events] == [("Warning", "AcceleratorUndecided")]


@pytest.mark.parametrize("name", OTHERS)
def test_a_job_with_another_accelerator_is_made_as_it_was_decided(name: str) -> None:
    assert decided(asking(name, processesPerPod=2, backend="gloo")) == ("2", "gloo")


@pytest.mark.parametrize(
    "name", ["memory", "rdma/hca_shared_devices_a", "vpc.amazonaws.com/efa", "hugepages-2Mi", "example.com/x"]
)
def test_other_resources_decide_nothing(name: str) -> None:
    assert decided(asking(name)) == ("1", "gloo")


def test_an_accelerator_of_which_none_is_asked_for_decides_nothing() -> None:
    assert decided(asking("habana.ai/gaudi", "0")) == ("1", "gloo")
