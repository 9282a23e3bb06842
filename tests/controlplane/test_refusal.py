"""A real ResourceQuota in the way of a child: told in the job's status, and over when the quota is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dtj_agent import names
from hack.cluster.controlplane import ControlPlane
from tests.controlplane.support import Agents, Kubelet, Objects, Operator, eventually
from tests.controlplane.test_life import running

JOBS = names.PLURAL


def set_quota(plane: ControlPlane, namespace: str, what: str, number: int) -> None:
    """And wait until the API server's admission has it. Each namespace has a ConfigMap and perhaps a Secret of its own."""
    base = f"/api/v1/namespaces/{namespace}/resourcequotas"
    body = {"metadata": {"name": "q"}, "spec": {"hard": {what: str(number)}}}
    plane.request("POST", base, body)
    eventually("the quota is counted", lambda: plane.request("GET", base + "/q").get("status", {}).get("used"))


@pytest.mark.parametrize("what", ["secrets", "services", "count/statefulsets.apps"])
def test_a_quota_on_a_child_is_a_condition_with_the_servers_words_and_heals(
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

    def told() -> Any:
        conditions = (objects.get(JOBS, "j").get("status") or {}).get("conditions") or []
        return next((c for c in conditions if c["reason"] == "ChildRefused"), None)

    said = eventually("the status says it", told)
    assert (said["type"], said["status"]) == ("Running", "False")
    assert f"exceeded quota: q, requested: {what}=1, used: {what}=0, limited: {what}=0" in said["message"]
    assert objects.get("statefulsets", "j") is None
    eventually("so does an event", lambda: [e for e in objects.list("events") if e["reason"] == "ChildRefused"])
    status = objects.get(JOBS, "j")["status"]
    assert (status["phase"], "startTime" in status) == ("Pending", False)
    plane.request("DELETE", f"/api/v1/namespaces/{namespace}/resourcequotas/q")
    eventually("it goes on by itself", lambda: len(objects.list("pods")) == 2, seconds=60)
    refused = [line for line in operator.lines() if "refuses" in line["message"]]
    assert 1 <= len(refused) <= 8, "asked again later and later"


def test_a_repair_that_a_quota_refuses_is_not_tried_at_every_poll(
    plane: ControlPlane, namespace: str, start_operator: Callable[..., Operator], submit: Callable[..., Any],
    objects: Objects, kubelet: Kubelet, agents: Agents,
) -> None:  # fmt: skip
    """The agent is asked every 2 seconds; the Service is tried after 1, 2, 4, ... 60."""
    operator = start_operator("--resync-seconds", "1").ready()
    job = submit()
    agents.words[job["metadata"]["uid"]] = running()
    eventually("it runs", lambda: objects.condition("j", "Running"))
    set_quota(plane, namespace, "services", 0)
    plane.request("DELETE", objects.path("services", "j"))
    refused = lambda: [line for line in operator.lines() if "refuses" in line["message"]]  # noqa: E731
    eventually("refused twice", lambda: len(refused()) >= 2)
    asked = agents.asked
    eventually("many looks later", lambda: agents.asked >= asked + 5)
    assert len(refused()) <= 4
    assert objects.condition("j", "Running"), "the training goes on"
    plane.request("DELETE", f"/api/v1/namespaces/{namespace}/resourcequotas/q")
    eventually("it is repaired", lambda: objects.get("services", "j"), seconds=60)
