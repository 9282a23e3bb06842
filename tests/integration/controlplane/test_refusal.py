"""Real quotas, limit ranges, policies and pod security that reject a child.

A condition reports the rejection, and recovers when the obstacle is gone.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from dtj_contract import names
from hack.cluster.controlplane import ControlPlane
from hack.cluster.shell import ProvisionError
from tests.integration.controlplane.kubelet import Kubelet
from tests.integration.controlplane.support import Agents, Objects, Operator, change, running, wait_until

JOBS = names.PLURAL


def set_quota(plane: ControlPlane, namespace: str, what: str, number: int) -> None:
    """Sets the quota, and waits until the API server's admission knows it.

    Each namespace has a ConfigMap, and perhaps a Secret, that the tests did not create.
    """
    base = f"/api/v1/namespaces/{namespace}/resourcequotas"
    body = {"metadata": {"name": "q"}, "spec": {"hard": {what: str(number)}}}
    plane.request("POST", base, body)
    wait_until("the quota is counted", lambda: plane.request("GET", base + "/q").get("status", {}).get("used"))


@pytest.mark.parametrize("what", ["secrets", "services", "count/statefulsets.apps"])
def test_quota_on_a_child_is_a_condition_with_the_message_and_recovers(
    what: str,
    plane: ControlPlane,
    namespace: str,
    start_operator: Callable[..., Operator],
    submit: Callable[..., Any],
    objects: Objects,
) -> None:
    set_quota(plane, namespace, what, 0)
    operator = start_operator().ready()
    submit()

    def not_running() -> Any:
        conditions = (objects.get(JOBS, "j").get("status") or {}).get("conditions") or []
        return next((c for c in conditions if c["reason"] == "ChildRefused"), None)

    condition = wait_until("the status reports it", not_running)
    assert (condition["type"], condition["status"]) == ("Running", "False")
    assert f"exceeded quota: q, requested: {what}=1, used: {what}=0, limited: {what}=0" in condition["message"]
    assert objects.get("statefulsets", "j") is None
    wait_until("an event reports it, too", lambda: [e for e in objects.list("events") if e["reason"] == "ChildRefused"])
    status = objects.get(JOBS, "j")["status"]
    assert (status["phase"], "startTime" in status) == ("Pending", True)
    plane.request("DELETE", f"/api/v1/namespaces/{namespace}/resourcequotas/q")
    wait_until("the job continues by itself", lambda: len(objects.list("pods")) == 2, timeout=60)
    refused = [line for line in operator.lines() if "rejects" in line["message"]]
    assert 1 <= len(refused) <= 8, "retried with a growing delay"


def test_full_quota_does_not_stop_a_job_whose_objects_exist(
    plane: ControlPlane,
    namespace: str,
    start_operator: Callable[..., Operator],
    submit: Callable[..., Any],
    objects: Objects,
) -> None:
    """The quota refuses a create before the API server looks whether the object exists."""
    operator = start_operator().ready()
    submit(checkpoint={"volume": {"claimTemplate": {"size": "1Gi"}}})
    wait_until("the pods exist", lambda: len(objects.list("pods")) == 2)
    full = {"persistentvolumeclaims": "1", **{what: str(len(objects.list(what))) for what in ("secrets", "services")}}
    base = f"/api/v1/namespaces/{namespace}/resourcequotas"
    plane.request("POST", base, {"metadata": {"name": "q"}, "spec": {"hard": full}})
    wait_until("the quota is full", lambda: plane.request("GET", base + "/q").get("status", {}).get("used") == full)
    objects.change(JOBS, "j", lambda job: job["spec"].update(suspend=True))
    wait_until("the job is suspended", lambda: objects.condition("j", "Suspended") and not objects.list("pods"))
    objects.change(JOBS, "j", lambda job: job["spec"].update(suspend=False))
    wait_until("the pods exist again", lambda: len(objects.list("pods")) == 2)
    assert not [line for line in operator.lines() if "rejects" in line["message"]]


def test_repair_rejected_by_a_quota_is_not_retried_at_every_poll(
    plane: ControlPlane, namespace: str, start_operator: Callable[..., Operator], submit: Callable[..., Any],
    objects: Objects, kubelet: Kubelet, agents: Agents,
) -> None:  # fmt: skip
    """The agent is polled every 2 seconds; the Service is retried after 1, 2, 4, ... 60."""
    operator = start_operator("--resync-seconds", "1").ready()
    job = submit()
    agents.statuses[job["metadata"]["uid"]] = running()
    wait_until("the job runs", lambda: objects.condition("j", "Running"))
    set_quota(plane, namespace, "services", 0)
    plane.request("DELETE", objects.path("services", "j"))
    refused = lambda: [line for line in operator.lines() if "rejects" in line["message"]]  # noqa: E731
    wait_until("rejected twice", lambda: len(refused()) >= 2)
    asked = agents.asked
    wait_until("many polls later", lambda: agents.asked >= asked + 10)
    assert len(refused()) <= 7, "seven retries take a minute"
    assert objects.condition("j", "Running"), "the training continues"
    plane.request("DELETE", f"/api/v1/namespaces/{namespace}/resourcequotas/q")
    wait_until("the Service is repaired", lambda: objects.get("services", "j"), timeout=60)


def refused(objects: Objects, name: str = "j") -> Any:
    """Returns the condition ChildRefused, or None."""
    conditions = (objects.get(JOBS, name).get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == "Running" and c["reason"] == "ChildRefused"), None)


def is_refused(plane: ControlPlane, namespace: str, container: Any, message: str) -> bool:
    """Returns whether the API server's admission knows of the obstacle.

    Admission learns of an obstacle a moment after its creation.
    """
    body = {"metadata": {"name": "dry-run"}, "spec": {"containers": [{"image": "i"} | container]}}
    try:
        plane.request("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", body)
    except ProvisionError as error:
        return message in str(error)
    return False


def pod_security(plane: ControlPlane, namespace: str) -> Callable[[], None]:
    def enforce(level: str) -> None:
        label = {"pod-security.kubernetes.io/enforce": level}
        change(plane, f"/api/v1/namespaces/{namespace}", lambda whole: whole["metadata"]["labels"].update(label))

    enforce("restricted")
    return lambda: enforce("privileged")


def limit_range(plane: ControlPlane, namespace: str) -> Callable[[], None]:
    base = f"/api/v1/namespaces/{namespace}/limitranges"
    limits = [{"type": "Container", "min": {"memory": "100Gi"}}]
    plane.request("POST", base, {"metadata": {"name": "l"}, "spec": {"limits": limits}})
    return lambda: plane.request("DELETE", base + "/l")


def webhook(plane: ControlPlane, namespace: str, port: int = 1) -> Callable[[], None]:
    """Creates a webhook that nobody answers for."""
    base = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    hook = {
        "name": "images.example.org",
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "clientConfig": {"url": f"https://127.0.0.1:{port}/"},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 1,
    }
    plane.request("POST", base, {"metadata": {"name": namespace}, "webhooks": [hook]})
    return lambda: plane.request("DELETE", f"{base}/{namespace}")


def policy(plane: ControlPlane, namespace: str) -> Callable[[], None]:
    base = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "false", "message": "not today"}],
    }
    plane.request("POST", base + "ies", {"metadata": {"name": namespace}, "spec": spec})
    selector = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    binding = {"policyName": namespace, "validationActions": ["Deny"], "matchResources": selector}
    plane.request("POST", base + "ybindings", {"metadata": {"name": namespace}, "spec": binding})
    return lambda: plane.request("DELETE", base + "ybindings/" + namespace)


@pytest.mark.parametrize(
    ("obstacle", "message"),
    [
        (pod_security, "violates PodSecurity"),
        (limit_range, "minimum memory usage per Container is 100Gi"),
        (webhook, "failed calling webhook"),
        (policy, "not today"),
    ],
)
def test_temporary_rejection_is_a_condition_with_the_message_and_recovers(
    obstacle: Callable[[ControlPlane, str], Callable[[], Any]],
    message: str,
    plane: ControlPlane,
    namespace: str,
    start_operator: Callable[..., Operator],
    submit: Callable[..., Any],
    objects: Objects,
) -> None:
    start_operator().ready()
    heal = obstacle(plane, namespace)
    container = {"name": "trainer", "securityContext": {"privileged": True}, "resources": {"limits": {"memory": "8Gi"}}}
    wait_until("the obstacle is effective", lambda: is_refused(plane, namespace, container, message), timeout=60)
    submit(template={"spec": {"containers": [container]}})
    condition = wait_until("the status reports it", lambda: refused(objects))
    assert message in condition["message"]
    assert objects.get("statefulsets", "j") is None
    heal()
    wait_until("the job continues by itself", lambda: len(objects.list("pods")) == 2, timeout=90)
    assert not objects.condition("j", "Failed")


def test_hanging_webhook_is_a_condition(
    plane: ControlPlane,
    namespace: str,
    start_operator: Callable[..., Operator],
    submit: Callable[..., Any],
    objects: Objects,
) -> None:
    """Kubernetes gives a webhook 10 seconds if its configuration sets no timeout."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        heal = webhook(plane, namespace, silent.getsockname()[1])
        container = {"name": "trainer"}
        wait_until(
            "the obstacle is effective",
            lambda: is_refused(plane, namespace, container, "failed calling webhook"),
            timeout=60,
        )
        hooks = f"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/{namespace}"
        change(plane, hooks, lambda whole: whole["webhooks"][0].update(timeoutSeconds=10))
        start_operator().ready()
        submit()
        condition = wait_until("the status reports it", lambda: refused(objects), timeout=60)
        assert "failed calling webhook" in condition["message"]
        heal()


def test_lasting_rejection_is_bounded_by_the_deadline(
    plane: ControlPlane,
    namespace: str,
    start_operator: Callable[..., Operator],
    submit: Callable[..., Any],
    objects: Objects,
) -> None:
    set_quota(plane, namespace, "services", 0)
    start_operator().ready()
    submit(activeDeadlineSeconds=4)
    wait_until("the status reports the reason", lambda: refused(objects))
    failed = wait_until("the job has failed", lambda: objects.condition("j", "Failed"), timeout=60)
    assert failed["reason"] == "DeadlineExceeded"


def test_rejection_on_resume_does_not_fail_a_job_that_has_run(
    plane: ControlPlane, namespace: str, start_operator: Callable[..., Operator], submit: Callable[..., Any],
    objects: Objects, kubelet: Kubelet, agents: Agents,
) -> None:  # fmt: skip
    start_operator().ready()
    job = submit()
    agents.statuses[job["metadata"]["uid"]] = running()
    wait_until("the job runs", lambda: objects.condition("j", "Running"))

    def suspend(value: bool) -> None:
        objects.change(JOBS, "j", lambda whole: whole["spec"].update(suspend=value))

    suspend(True)
    wait_until("the job is suspended", lambda: objects.condition("j", "Suspended"), timeout=60)
    heal = limit_range(plane, namespace)
    message = "minimum memory usage per Container is 100Gi"
    container = {"name": "trainer", "resources": {"requests": {"memory": "1Mi"}}}
    wait_until("the obstacle is effective", lambda: is_refused(plane, namespace, container, message), timeout=60)
    suspend(False)
    condition = wait_until("the child is rejected", lambda: refused(objects))
    assert message in condition["message"]
    heal()
    wait_until("the job runs again", lambda: objects.condition("j", "Running"), timeout=90)
