"""DistributedTrainingRuntime on a real API server: a job of six lines, and what a change of its runtime does."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dtj_contract import names
from hack.cluster.controlplane import ControlPlane
from tests.integration.controlplane.support import Objects
from tests.lib.waiting import wait_until

pytestmark = pytest.mark.controlplane

PATH = f"/apis/{names.API_VERSION}/{names.RUNTIME_PLURAL}"
GPU = {
    "image": "platform/torch:1",
    "env": [{"name": "NCCL_DEBUG", "value": "WARN"}, {"name": "TEAM", "value": "platform"}],
    "nodeSelector": {"pool": "training"},
    "checkpoint": {"volume": {"claimName": "shared"}, "keep": 7},
    "restart": {"maxRestarts": 4},
    "backend": "gloo",
}


class Runtimes:
    """Creates and changes the runtimes of one test."""

    def __init__(self, plane: ControlPlane, prefix: str) -> None:
        self._plane = plane
        self._prefix = prefix
        self._created: list[str] = []

    def name(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def create(self, name: str, **spec: Any) -> Any:
        body = {"apiVersion": names.API_VERSION, "kind": names.RUNTIME_KIND, "spec": spec}
        created = self._plane.request("POST", PATH, body | {"metadata": {"name": self.name(name)}})
        self._created.append(name)
        return created

    def change(self, name: str, **spec: Any) -> None:
        stored = self._plane.request("GET", f"{PATH}/{self.name(name)}")
        self._plane.request("PUT", f"{PATH}/{self.name(name)}", stored | {"spec": stored["spec"] | spec})

    def close(self) -> None:
        for name in self._created:
            self._plane.request("DELETE", f"{PATH}/{self.name(name)}")


@pytest.fixture
def runtimes(plane: ControlPlane, namespace: str) -> Iterator[Runtimes]:
    found = Runtimes(plane, namespace)
    yield found
    found.close()


@pytest.fixture
def six_lines(plane: ControlPlane, namespace: str, runtimes: Runtimes) -> Callable[..., Any]:
    """Creates a job that leaves all but its script to the runtime `gpu`."""

    def create(name: str = "j", reference: dict[str, Any] | None = None, **spec: Any) -> Any:
        reference = {"name": runtimes.name("gpu")} | (reference or {})
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"runtimeRef": reference, "entrypoint": {"module": "train"}} | spec,
        }
        return plane.request("POST", f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}", body)

    return create


def trainer(objects: Objects, name: str = "j") -> Any:
    """Returns the trainer container of the job's StatefulSet, or None."""
    found = objects.get("statefulsets", name)
    return None if found is None else found["spec"]["template"]["spec"]["containers"][0]


def waits_for(objects: Objects, reason: str, name: str = "j") -> Any:
    job = objects.get(names.PLURAL, name)
    conditions = ((job or {}).get("status") or {}).get("conditions") or []
    return next((c["message"] for c in conditions if c["type"] == "Running" and c["reason"] == reason), None)


def suspend(objects: Objects, value: bool) -> None:
    objects.change(names.PLURAL, "j", lambda job: job["spec"].update(suspend=value))


def test_job_of_six_lines_has_what_its_runtime_gives(
    runtimes: Runtimes, six_lines: Callable[..., Any], objects: Objects, start_operator: Callable[..., Any]
) -> None:
    stored = runtimes.create("gpu", **GPU)
    start_operator()
    six_lines(env=[{"name": "TEAM", "value": "vision"}], checkpoint={"everySteps": 10})
    container = wait_until("the StatefulSet", lambda: trainer(objects))
    assert container["image"] == "platform/torch:1"
    values = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert (values["NCCL_DEBUG"], values["TEAM"]) == ("WARN", "vision"), "lists of env are merged by name"
    assert values["DTJ_MAX_RESTARTS"] == "4", "the API server writes no default over the runtime's"
    assert (values["DTJ_CHECKPOINT_KEEP"], values["DTJ_CHECKPOINT_EVERY_STEPS"]) == ("7", "10")
    pod = objects.get("statefulsets", "j")["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"pool": "training"}
    assert any((volume.get("persistentVolumeClaim") or {}).get("claimName") == "shared" for volume in pod["volumes"])
    taken = objects.get(names.PLURAL, "j")["status"]["runtime"]
    expected = (runtimes.name("gpu"), stored["metadata"]["uid"], 1)
    assert (taken["name"], taken["uid"], taken["generation"]) == expected
    assert taken["spec"]["image"] == "platform/torch:1"
    assert len(taken["hash"]) == 12


def test_change_of_a_runtime_writes_nothing_to_a_job_that_has_it(
    runtimes: Runtimes, six_lines: Callable[..., Any], objects: Objects,
    start_operator: Callable[..., Any],
) -> None:  # fmt: skip
    """Not even if the operator restarts in between: it knows the runtime only as it is now."""
    runtimes.create("gpu", **GPU)
    operator = start_operator()
    six_lines()
    wait_until("the StatefulSet", lambda: trainer(objects))
    wait_until("the job's status", lambda: waits_for(objects, "PodsPending"))
    before = {each: objects.get(each, "j") for each in ("statefulsets", names.PLURAL)}
    runtimes.change("gpu", image="platform/torch:2", env=[])
    operator.kill()
    start_operator()
    six_lines("later")
    second = wait_until("the next job's StatefulSet", lambda: trainer(objects, "later"))
    assert second["image"] == "platform/torch:2", "the operator knows the change by now"
    after = {each: objects.get(each, "j") for each in before}
    assert after["statefulsets"]["metadata"]["generation"] == before["statefulsets"]["metadata"]["generation"]
    assert after["statefulsets"]["metadata"]["uid"] == before["statefulsets"]["metadata"]["uid"]
    assert after[names.PLURAL]["status"]["runtime"] == before[names.PLURAL]["status"]["runtime"]
    assert trainer(objects)["image"] == "platform/torch:1"


def test_job_waits_for_a_runtime_that_does_not_exist(
    runtimes: Runtimes, six_lines: Callable[..., Any], objects: Objects, start_operator: Callable[..., Any]
) -> None:
    start_operator()
    six_lines()
    message = wait_until("the condition", lambda: waits_for(objects, "RuntimeNotFound"))
    wanted = f"spec.runtimeRef.name: there is no DistributedTrainingRuntime {runtimes.name('gpu')}: create it"
    assert message.startswith(wanted)
    assert objects.get("statefulsets", "j") is None
    runtimes.create("gpu", **GPU)
    container = wait_until("the StatefulSet, once the runtime exists", lambda: trainer(objects))
    assert container["image"] == "platform/torch:1"


def test_job_waits_for_what_neither_it_nor_its_runtime_gives(
    runtimes: Runtimes, six_lines: Callable[..., Any], objects: Objects, start_operator: Callable[..., Any]
) -> None:
    runtimes.create("gpu", env=[])
    start_operator()
    six_lines()
    message = wait_until("the condition", lambda: waits_for(objects, "RuntimeIncomplete"))
    assert "spec.image: no image" in message
    runtimes.change("gpu", image="platform/torch:3")
    container = wait_until("the StatefulSet, once the runtime has an image", lambda: trainer(objects))
    assert container["image"] == "platform/torch:3"


@pytest.mark.parametrize(("policy", "image"), [("Never", "platform/torch:1"), ("OnResume", "platform/torch:2")])
def test_resumed_job_takes_a_change_only_by_its_policy(
    runtimes: Runtimes, six_lines: Callable[..., Any], objects: Objects,
    start_operator: Callable[..., Any], policy: str, image: str,
) -> None:  # fmt: skip
    runtimes.create("gpu", **GPU)
    start_operator()
    six_lines(reference={"updatePolicy": policy})
    wait_until("the StatefulSet", lambda: trainer(objects))
    suspend(objects, True)
    wait_until("the suspension", lambda: objects.condition("j", "Suspended"))
    runtimes.change("gpu", image="platform/torch:2")
    suspend(objects, False)
    assert wait_until("the StatefulSet of the next run", lambda: trainer(objects))["image"] == image


def test_api_server_checks_a_runtime_at_the_door(runtimes: Runtimes) -> None:
    """A runtime has the rules of a job that are about its fields, and none about those that a job adds."""
    runtimes.create("empty")
    twice = {"template": {"spec": {"containers": [{"name": "trainer", "image": "b"}]}}}
    for spec, text in (
        ({"image": "a", **twice}, "set spec.image or the image of the template's container, not both"),
        ({"env": [{"name": "DTJ_JOB", "value": "x"}]}, "reserved by the operator"),
        ({"checkpoint": {"mountPath": "/dev", "volume": {"claimName": "c"}}}, "set mountPath to an absolute path"),
    ):
        with pytest.raises(Exception, match=text):
            runtimes.create("bad", **spec)


def test_job_without_a_runtime_still_needs_an_image_and_a_volume(six_lines: Callable[..., Any]) -> None:
    with pytest.raises(Exception, match="no image: set"):
        six_lines(runtimeRef=None)
    with pytest.raises(Exception, match="no volume for the checkpoints"):
        six_lines(runtimeRef=None, image="a", checkpoint={"everySteps": 5})


def test_runtime_of_a_running_job_can_not_be_exchanged(
    plane: ControlPlane, six_lines: Callable[..., Any], objects: Objects
) -> None:
    job = six_lines()
    changed = job | {"spec": job["spec"] | {"runtimeRef": {"name": "other"}}}
    with pytest.raises(Exception, match="runtimeRef can't change unless the job is suspended"):
        plane.request("PUT", objects.path(names.PLURAL, "j"), changed)
    # A default that an older CRD wrote equals an absent field.
    plane.request("PUT", objects.path(names.PLURAL, "j"), job | {"spec": job["spec"] | {"backend": "auto"}})


def test_kubectl_knows_the_short_name_and_explains_the_fields(plane: ControlPlane, runtimes: Runtimes) -> None:
    runtimes.create("gpu", image="a")

    def kubectl(*arguments: str) -> str:
        command = [plane.bin_dir / "kubectl", "--kubeconfig", plane.kubeconfig, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    assert runtimes.name("gpu") in kubectl("get", "dtr")
    assert "Container image with Python 3.9 or newer" in kubectl("explain", "dtr.spec.image")
    assert "Default: 10." in kubectl("explain", "dtj.spec.restart.maxRestarts")
