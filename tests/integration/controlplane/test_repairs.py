"""Repairs that only the operator can make, with the real StatefulSet controller.

The tests run on a real API server: a stuck pod, a deleted Secret.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtj_contract import names
from tests.integration.controlplane.kubelet import Kubelet
from tests.integration.controlplane.nodes import place
from tests.integration.controlplane.support import (
    Agents,
    Objects,
    Operator,
    agent_address,
    running,
    wait_until,
)


def test_stuck_pod_is_replaced_although_its_kubelet_cannot_stop_it(
    start_operator: Callable[..., Operator],
    run_job: Callable[..., Any],
    objects: Objects,
    kubelet: Kubelet,
    agents: Agents,
) -> None:
    operator = start_operator(program=(str(Path(__file__).parent / "impatient.py"),)).ready()
    uid = run_job()["metadata"]["uid"]
    before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in objects.list("pods")}
    kubelet.held = set(before.values())
    place(objects, "j-1", "w1")
    message = "the workers of pod j-1 can't be killed; the pod must be replaced: processes 7 do not die of SIGKILL"
    failure = {
        "attempt": 1,
        "rank": 1,
        "ordinal": 1,
        "pod": "j-1",
        "reason": "WorkerStuck",
        "message": message,
        "time": 1790000009.0,
    }
    member = {"ordinal": 1, "pod": "j-1", "address": agent_address(), "state": "stuck"}
    agents.statuses[uid] = running(phase="Rendezvous", phaseReason="WorkerStuck", failures=[failure], members=[member])
    asked = wait_until(
        "it is asked to go",
        lambda: "deletionTimestamp" in (p := objects.get("pods", "j-1") or {"metadata": {}})["metadata"] and p,
    )
    agents.statuses[uid] = running(
        phase="Rendezvous", phaseReason="WorkerStuck", failures=[failure]
    )  # its agent has ended
    assert asked["metadata"]["uid"] == before["j-1"]
    assert asked["metadata"]["deletionGracePeriodSeconds"] == 1
    condition = wait_until("the status reports it", lambda: objects.condition("j", "Restarting"))
    assert (condition["reason"], condition["message"]) == ("WorkerStuck", message)
    wait_until("another pod exists", lambda: (objects.get("pods", "j-1") or asked)["metadata"]["uid"] != before["j-1"])
    assert objects.get("pods", "j-0")["metadata"]["uid"] == before["j-0"], "the other pod is not touched"
    deleted = [call for call in operator.writes() if call["verb"] == "delete"]
    assert [call["objectRef"]["name"] for call in deleted] == ["j-1", "j-1"], "requested once, deleted once"
    agents.statuses[uid] = running(attempt=2)
    wait_until("the job runs again", lambda: objects.condition("j", "Running"))


def test_deleted_secret_is_recreated_with_its_key_for_a_new_pod(
    start_operator: Callable[..., Operator],
    run_job: Callable[..., Any],
    objects: Objects,
    kubelet: Kubelet,
) -> None:
    operator = start_operator(program=(str(Path(__file__).parent / "impatient.py"),)).ready()
    run_job()
    secret = objects.get("secrets", "j-dtj-agent")
    kubelet.container_states["j-1"] = {"state": {"waiting": {"reason": "ContainerCreating"}}}
    pod = objects.get("pods", "j-1")
    objects.plane.request("DELETE", objects.path("secrets", "j-dtj-agent"))
    objects.plane.request("DELETE", objects.path("pods", "j-1"))
    new = wait_until(
        "another pod",
        lambda: (p := objects.get("pods", "j-1")) and p["metadata"]["uid"] != pod["metadata"]["uid"] and p,
    )
    place(objects, "j-1", "w1")
    again = wait_until("the Secret exists again", lambda: objects.get("secrets", "j-dtj-agent"))
    assert again["metadata"]["uid"] != secret["metadata"]["uid"]
    assert again["data"] == secret["data"], "the pods that run have the same key"
    (owner,), (before,) = again["metadata"]["ownerReferences"], secret["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == (before["uid"], False)
    assert objects.get("pods", "j-1")["metadata"]["uid"] == new["metadata"]["uid"], "nothing was restarted for it"
    assert not [
        call for call in operator.calls() if call["objectRef"].get("resource") == "secrets" and call["verb"] == "get"
    ]


def test_pod_that_mounts_for_long_in_a_full_quota_of_secrets_is_not_refused(
    start_operator: Callable[..., Operator],
    run_job: Callable[..., Any],
    objects: Objects,
    kubelet: Kubelet,
) -> None:
    """The quota refuses the create of a Secret before the API server looks whether it is there."""
    operator = start_operator(program=(str(Path(__file__).parent / "impatient.py"),)).ready()
    run_job()
    secret = objects.get("secrets", "j-dtj-agent")
    full = {"secrets": str(len(objects.list("secrets")))}
    objects.plane.request("POST", objects.path("resourcequotas"), {"metadata": {"name": "q"}, "spec": {"hard": full}})
    wait_until("the quota is full", lambda: objects.get("resourcequotas", "q").get("status", {}).get("used") == full)
    kubelet.container_states["j-1"] = {"state": {"waiting": {"reason": "ContainerCreating"}}}
    objects.plane.request("DELETE", objects.path("pods", "j-1"))
    wait_until("another pod", lambda: (pod := objects.get("pods", "j-1")) and not pod["spec"].get("nodeName"))
    place(objects, "j-1", "w1")

    def asked() -> bool:
        calls = [call for call in operator.writes() if call["objectRef"].get("resource") == "secrets"]
        return any(call["verb"] == "patch" and call["responseStatus"]["code"] == 200 for call in calls)

    wait_until("the operator has found the Secret", asked)
    assert objects.get("secrets", "j-dtj-agent")["metadata"]["resourceVersion"] == secret["metadata"]["resourceVersion"]
    assert not [line for line in operator.lines() if "rejects" in line["message"]]


def test_pods_over_quota_are_reported_and_come_once_there_is_room(
    start_operator: Callable[..., Operator],
    submit: Callable[..., Any],
    objects: Objects,
    kubelet: Kubelet,
    agents: Agents,
) -> None:
    start_operator(program=(str(Path(__file__).parent / "impatient.py"),)).ready()
    quota = {"metadata": {"name": "one"}, "spec": {"hard": {"pods": "1"}}}
    objects.plane.request("POST", objects.path("resourcequotas"), quota)
    wait_until("the quota is counted", lambda: objects.get("resourcequotas", "one").get("status", {}).get("used"))
    submit()
    wait_until("one pod exists", lambda: len(objects.list("pods")) == 1)

    def quota_is_reported() -> bool:
        conditions = objects.get("distributedtrainingjobs", "j")["status"]["conditions"]
        condition = next(c for c in conditions if c["type"] == "Running")
        return bool(condition["reason"] == "ChildRefused" and "exceeded quota: one" in condition["message"])

    wait_until("the message of the quota is in the condition", quota_is_reported, timeout=60, retry=(KeyError,))
    assert names.ANNOTATION_NUDGED not in objects.get("statefulsets", "j")["metadata"]["annotations"]
    objects.plane.request("DELETE", objects.path("resourcequotas", "one"))
    wait_until("both pods exist", lambda: len(objects.list("pods")) == 2, timeout=90)


def test_stateful_set_without_its_admissible_pods_is_nudged(
    start_operator: Callable[..., Operator], submit: Callable[..., Any], objects: Objects
) -> None:
    """A pod that the StatefulSet does not own has the name of one that it must create."""
    taken = {"metadata": {"name": "j-1"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    objects.plane.request("POST", objects.path("pods"), taken)
    start_operator(program=(str(Path(__file__).parent / "impatient.py"),)).ready()
    submit()
    wait_until(
        "its controller is woken",
        lambda: (
            names.ANNOTATION_NUDGED in (objects.get("statefulsets", "j") or taken)["metadata"].get("annotations", {})
        ),
        timeout=60,
    )


def test_edited_service_and_stateful_set_are_restored_without_touching_pods(
    start_operator: Callable[..., Operator],
    run_job: Callable[..., Any],
    objects: Objects,
) -> None:
    operator = start_operator().ready()
    run_job()
    pods = {pod["metadata"]["uid"] for pod in objects.list("pods")}

    def state() -> Any:
        container = objects.get("statefulsets", "j")["spec"]["template"]["spec"]["containers"][0]
        return objects.get("services", "j")["spec"], container["image"], container["command"]

    made = state()

    def edit(stateful_set: Any) -> None:
        stateful_set["spec"]["template"]["spec"]["containers"][0].update(image="edited", command=["sh"])

    objects.change("services", "j", lambda service: service["spec"].update(selector={"app": "another"}))
    objects.change("statefulsets", "j", edit)
    wait_until("both are restored", lambda: state() == made, timeout=90)
    applies = [c for c in operator.writes() if c["verb"] == "patch" and c["objectRef"]["resource"] == "statefulsets"]
    assert len(applies) == 2, "created once, repaired once"
    assert {pod["metadata"]["uid"] for pod in objects.list("pods")} == pods
