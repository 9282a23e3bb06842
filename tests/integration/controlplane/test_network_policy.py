"""The NetworkPolicy of a job on a real API server. Whether it holds is the CNI's part (tests/e2e/test_network.py)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from dtj_contract import names
from hack.cluster.controlplane import ControlPlane
from tests.integration.controlplane.support import Objects, Operator, wait_until

OPERATOR = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "dtj-system"}}}
MONITORING = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
OWN = {"podSelector": {"matchLabels": {names.LABEL_JOB: "j"}}}
POLICIES = "networkpolicies"


def admitting(*peers: Any) -> str:
    return "--job-network-policy-from=" + json.dumps(peers)


def hears_an_agent(operator: Operator) -> bool:
    return 'dtj_agent_listeners{state="heard"} 1.0' in operator.get("/metrics")[1]


def written(operator: Operator) -> list[str]:
    return [
        "/".join(filter(None, (call["objectRef"]["resource"], call["objectRef"].get("subresource"))))
        for call in operator.writes()
    ]


def test_job_gets_its_policy_within_five_writes_and_loses_it_with_its_end(
    plane: ControlPlane, start_operator: Callable[..., Operator], submit: Callable[..., Any], objects: Objects
) -> None:
    operator = start_operator(admitting(OPERATOR)).ready()
    job = submit()
    # Without a kubelet the pods stay Pending, and the job is as far as it gets.
    wait_until("its pods exist", lambda: len(objects.list("pods")) == 2)
    status = f"{names.PLURAL}/status"
    wait_until("its status is written", lambda: status in written(operator))
    policy = objects.get(POLICIES, "j-dtj-agent")
    assert [owner["uid"] for owner in policy["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]
    assert policy["spec"] == {
        "podSelector": OWN["podSelector"],
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [OWN]}, {"from": [OPERATOR], "ports": [{"port": names.AGENT_PORT, "protocol": "TCP"}]}],
    }
    for pod in objects.list("pods"):
        assert OWN["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert written(operator) == ["secrets", POLICIES, "services", "statefulsets", status]
    verbs = {call["verb"] for call in operator.calls() if call["objectRef"]["resource"] == POLICIES}
    assert verbs == {"create"}, "policies are neither read nor watched"
    plane.request("DELETE", objects.path(names.PLURAL, "j"))
    wait_until("the policy is deleted with its job", lambda: not objects.list(POLICIES), timeout=90)


def test_new_peers_reach_a_running_job_and_its_pods_stay(
    start_operator: Callable[..., Operator], run_job: Callable[..., Any], objects: Objects
) -> None:
    first = start_operator(admitting(OPERATOR)).ready()
    run_job()
    uids = {pod["metadata"]["uid"] for pod in objects.list("pods")}
    generation = objects.get("statefulsets", "j")["metadata"]["generation"]
    assert first.terminate() == 0
    second = start_operator(admitting(OPERATOR, MONITORING)).ready()
    wait_until(
        "the policy admits the new peer",
        lambda: MONITORING in objects.get(POLICIES, "j-dtj-agent")["spec"]["ingress"][1]["from"],
    )
    # The audit log knows the operators by one account.
    wait_until("the StatefulSet names it", lambda: written(second).count("statefulsets") == 2)
    assert second.terminate() == 0
    third = start_operator(admitting(OPERATOR, MONITORING)).ready()
    wait_until("the next one has looked at the job", lambda: hears_an_agent(third))
    # The second operator's create is rejected, because the policy exists, and an apply follows.
    assert (written(third).count(POLICIES), written(third).count("statefulsets")) == (3, 2)
    assert {pod["metadata"]["uid"] for pod in objects.list("pods")} == uids
    assert objects.get("statefulsets", "j")["metadata"]["generation"] == generation
