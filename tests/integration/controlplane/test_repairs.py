"""What only the operator can mend, on a real API server with the real StatefulSet controller: a stuck pod, a deleted Secret."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtj_contract import names
from tests.integration.controlplane.support import Agents, Kubelet, Objects, Operator, agent_address, eventually
from tests.integration.controlplane.test_life import running


def test_a_pod_that_its_agent_calls_stuck_is_replaced_though_its_kubelet_can_not_end_it(
    start_operator: Callable[..., Operator], submit: Callable[..., Any], objects: Objects, kubelet: Kubelet, agents: Agents
) -> None:
    operator = start_operator(program=(str(Path(__file__).parent / "impatient.py"),)).ready()
    job = submit()
    uid = job["metadata"]["uid"]
    agents.words[uid] = running()
    eventually("it runs", lambda: objects.condition("j", "Running"))
    before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in objects.list("pods")}
    kubelet.held = set(before.values())
    # A pod on a node waits for its kubelet when it is deleted; one on none would be gone at once.
    binding = {"metadata": {"name": "j-1"}, "target": {"kind": "Node", "name": "w1"}}
    objects.plane.request("POST", objects.path("pods", "j-1") + "/binding", binding)
    told = "the workers of pod j-1 can't be killed; the pod must be replaced: processes 7 do not die of SIGKILL"
    failure = {
        "attempt": 1,
        "rank": 1,
        "ordinal": 1,
        "pod": "j-1",
        "reason": "WorkerStuck",
        "message": told,
        "time": 1790000009.0,
    }
    member = {"ordinal": 1, "pod": "j-1", "address": agent_address(), "state": "stuck"}
    agents.words[uid] = running(phase="Rendezvous", phaseReason="WorkerStuck", failures=[failure], members=[member])
    asked = eventually(
        "it is asked to go",
        lambda: "deletionTimestamp" in (p := objects.get("pods", "j-1") or {"metadata": {}})["metadata"] and p,
    )
    agents.words[uid] = running(phase="Rendezvous", phaseReason="WorkerStuck", failures=[failure])  # its agent's end is seen
    assert asked["metadata"]["uid"] == before["j-1"]
    assert asked["metadata"]["deletionGracePeriodSeconds"] == 1
    said = eventually("it is told", lambda: objects.condition("j", "Restarting"))
    assert (said["reason"], said["message"]) == ("WorkerStuck", told)
    eventually("another is there", lambda: (objects.get("pods", "j-1") or asked)["metadata"]["uid"] != before["j-1"])
    assert objects.get("pods", "j-0")["metadata"]["uid"] == before["j-0"], "the other pod is not touched"
    deleted = [call for call in operator.writes() if call["verb"] == "delete"]
    assert [call["objectRef"]["name"] for call in deleted] == ["j-1", "j-1"], "asked once, removed once"
    agents.words[uid] = running(attempt=2)
    eventually("it runs again", lambda: objects.condition("j", "Running"))


def test_a_secret_that_was_deleted_is_there_again_with_its_key_when_a_new_pod_waits_for_it(
    start_operator: Callable[..., Operator], submit: Callable[..., Any], objects: Objects, kubelet: Kubelet, agents: Agents
) -> None:
    operator = start_operator(program=(str(Path(__file__).parent / "impatient.py"),)).ready()
    agents.words[submit()["metadata"]["uid"]] = running()
    eventually("it runs", lambda: objects.condition("j", "Running"))
    secret = objects.get("secrets", "j-dtj-agent")
    kubelet.container_states["j-1"] = {"state": {"waiting": {"reason": "ContainerCreating"}}}
    pod = objects.get("pods", "j-1")
    objects.plane.request("DELETE", objects.path("secrets", "j-dtj-agent"))
    objects.plane.request("DELETE", objects.path("pods", "j-1"))
    new = eventually(
        "another pod", lambda: (p := objects.get("pods", "j-1")) and p["metadata"]["uid"] != pod["metadata"]["uid"] and p
    )
    binding = {"metadata": {"name": "j-1"}, "target": {"kind": "Node", "name": "w1"}}
    objects.plane.request("POST", objects.path("pods", "j-1") + "/binding", binding)
    again = eventually("the Secret is there again", lambda: objects.get("secrets", "j-dtj-agent"))
    assert again["metadata"]["uid"] != secret["metadata"]["uid"]
    assert again["data"] == secret["data"], "the pods that run have the same key"
    (owner,), (before,) = again["metadata"]["ownerReferences"], secret["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == (before["uid"], False)
    assert objects.get("pods", "j-1")["metadata"]["uid"] == new["metadata"]["uid"], "nothing was restarted for it"
    assert not [call for call in operator.calls() if call["objectRef"].get("resource") == "secrets" and call["verb"] == "get"]


def test_pods_over_a_quota_are_reported_with_its_words_and_their_controller_is_woken_when_there_is_room(
    start_operator: Callable[..., Operator], submit: Callable[..., Any], objects: Objects, kubelet: Kubelet, agents: Agents
) -> None:
    start_operator(program=(str(Path(__file__).parent / "impatient.py"),)).ready()
    quota = {"metadata": {"name": "one"}, "spec": {"hard": {"pods": "1"}}}
    objects.plane.request("POST", objects.path("resourcequotas"), quota)
    eventually("the quota is counted", lambda: objects.get("resourcequotas", "one").get("status", {}).get("used"))
    submit()
    eventually("one pod is there", lambda: len(objects.list("pods")) == 1)

    def told() -> bool:
        conditions = objects.get("distributedtrainingjobs", "j")["status"]["conditions"]
        said = next(c for c in conditions if c["type"] == "Running")
        return bool(said["reason"] == "ChildRefused" and "exceeded quota: one" in said["message"])

    eventually("the words of the quota are in the condition", told, seconds=60)
    assert names.ANNOTATION_NUDGED not in objects.get("statefulsets", "j")["metadata"]["annotations"]
    objects.plane.request("DELETE", objects.path("resourcequotas", "one"))
    eventually("both pods are there", lambda: len(objects.list("pods")) == 2, seconds=90)


def test_a_statefulset_that_makes_no_pods_though_they_would_be_let_in_is_touched(
    start_operator: Callable[..., Operator], submit: Callable[..., Any], objects: Objects
) -> None:
    """A pod that it does not own has the name of one that it is to make."""
    taken = {"metadata": {"name": "j-1"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    objects.plane.request("POST", objects.path("pods"), taken)
    start_operator(program=(str(Path(__file__).parent / "impatient.py"),)).ready()
    submit()
    eventually(
        "its controller is woken",
        lambda: names.ANNOTATION_NUDGED in (objects.get("statefulsets", "j") or taken)["metadata"].get("annotations", {}),
        seconds=60,
    )


def test_an_edited_service_and_an_edited_statefulset_are_as_before_and_no_pod_is_touched(
    start_operator: Callable[..., Operator], submit: Callable[..., Any], objects: Objects, kubelet: Kubelet, agents: Agents
) -> None:
    operator = start_operator().ready()
    agents.words[submit()["metadata"]["uid"]] = running()
    eventually("it runs", lambda: objects.condition("j", "Running"))
    pods = {pod["metadata"]["uid"] for pod in objects.list("pods")}

    def state() -> Any:
        container = objects.get("statefulsets", "j")["spec"]["template"]["spec"]["containers"][0]
        return objects.get("services", "j")["spec"], container["image"], container["command"]

    made = state()

    def edit(plural: str, change: Callable[[Any], None]) -> Callable[[], bool]:
        def edited() -> bool:
            live = objects.get(plural, "j")
            change(live["spec"])
            objects.plane.request("PUT", objects.path(plural, "j"), live)
            return True

        return edited

    eventually("the Service is edited", edit("services", lambda spec: spec.update(selector={"app": "another"})))
    eventually(
        "the StatefulSet is edited",
        edit("statefulsets", lambda spec: spec["template"]["spec"]["containers"][0].update(image="edited", command=["sh"])),
    )
    eventually("both are as they were", lambda: state() == made, seconds=90)
    applies = [c for c in operator.writes() if c["verb"] == "patch" and c["objectRef"]["resource"] == "statefulsets"]
    assert len(applies) == 2, "made, and repaired once"
    assert {pod["metadata"]["uid"] for pod in objects.list("pods")} == pods
