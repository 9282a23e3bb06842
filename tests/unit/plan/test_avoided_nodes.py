"""Nodes that a job avoids: which ones, for how long, and what happens to the pods there."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from dtj_core.plan import plan
from dtj_core.plan.model import Delete, Observed, Plan
from dtj_core.plan.times import rfc3339
from tests.unit.plan.objects import NOW, SETTINGS, agent, condition, job, pod, pods, service, started

Object = dict[str, Any]
DEFAULT: Object = {"afterFailures": 3, "forSeconds": 3600}
ANNOTATION = "training.dtj.dev/avoided-nodes"


def failure(attempt: int, node: str = "w1", reason: str = "WorkerFailed", *, age: float = 10, **more: Any) -> Object:
    ordinal = int(node[1:])
    return {
        "attempt": attempt, "rank": ordinal, "ordinal": ordinal, "pod": f"digits-{ordinal}", "node": node,
        "reason": reason, "message": "CUDA error", "time": NOW + 100 - age,
    } | more  # fmt: skip


THREE = [failure(1), failure(2), failure(3)]


class Cluster:
    """One running job, and a StatefulSet controller that replaces deleted pods on the node `spare`."""

    def __init__(
        self, avoid: Object | None = DEFAULT, *, nodes: tuple[str, ...] = ("w0", "w1", "w2"), **spec: Any
    ) -> None:
        if avoid is not None:
            spec["restart"] = {"avoidNodes": avoid}
        spec["replicas"] = len(nodes)
        stored, child = started(**spec)
        self.spec, self.settings, self.now = spec, SETTINGS, NOW + 100
        self.pods = tuple(self.pod(ordinal, node) for ordinal, node in enumerate(nodes))
        self.child = child | {"metadata": child["metadata"] | {"generation": 1}, "status": {"observedGeneration": 1}}
        self.status = stored["status"]
        self.look(agent(replicas=len(nodes)))

    def pod(self, ordinal: int, node: str | None, *, avoids: str = "", **status: Any) -> Object:
        made = pod(ordinal, **status)
        made["metadata"] |= {"annotations": {ANNOTATION: avoids}} if avoids else {}
        return made | {"spec": {"nodeName": node} if node else {}}

    def look(self, page: Object | None = None, *, after: float = 1.0) -> Plan:
        """Reconciles once, and stores what the plan writes."""
        self.now += after
        observed = Observed(stateful_set=self.child, service=service(), pods=self.pods, agent=page)
        wanted = plan(job(self.status, **self.spec), observed, self.now, self.settings)
        self.status = wanted.status
        for action in wanted.actions:
            if not isinstance(action, Delete) and getattr(action, "body", {}).get("kind") == "StatefulSet":
                metadata = self.child["metadata"]
                made = action.body["metadata"] | {"uid": metadata["uid"], "generation": metadata["generation"] + 1}  # type: ignore[union-attr]
                self.child = {**deepcopy(action.body), "metadata": made, "status": self.child["status"]}  # type: ignore[union-attr]
        return wanted

    def controller_looks(self) -> None:
        self.child["status"] = {"observedGeneration": self.child["metadata"]["generation"]}

    @property
    def avoided(self) -> list[str]:
        return [entry["node"] for entry in self.status.get("avoidedNodes", []) if "lifted" not in entry]

    @property
    def template(self) -> Object:
        found: Object = self.child["spec"]["template"]
        return found


def deleted(wanted: Plan) -> list[str]:
    return [action.name for action in wanted.actions if isinstance(action, Delete)]


def report(*failures: Object, **more: Any) -> Object:
    return agent(attempt=9, failures=list(failures), **more)


OTHERS: dict[str, tuple[list[Object], list[str]]] = {
    "three attempts on one node": (THREE, ["w1"]),
    "two attempts": (THREE[:2], []),
    "two ranks of one attempt": ([failure(1), failure(1, rank=5), failure(2)], []),
    "another node failed too": ([*THREE, failure(4, "w2")], []),
    "every node failed": ([failure(1), failure(2, "w2"), failure(3, "w0")], []),
    "lost pods elsewhere": ([*THREE, failure(4, "w2", "PodLost")], ["w1"]),
    "lost pods": ([failure(1, reason="PodLost"), *THREE[1:]], []),
    "lost connections": ([failure(n, reason="ConnectionLost") for n in (1, 2, 3)], []),
    "lack of memory": ([failure(n, reason="OOMKilled") for n in (1, 2, 3)], []),
    "a file that is missing": ([failure(n, reason="FileNotFound") for n in (1, 2, 3)], []),
    "crashed agents": ([failure(n, reason="AgentCrashed") for n in (1, 2, 3)], ["w1"]),
    "one of them long ago": ([failure(1, age=3700), *THREE[1:]], []),
    "no node": ([failure(n, node="w1") | {"node": ""} for n in (1, 2, 3)], []),
    "a node without pods of the job": ([failure(n, "w7") for n in (1, 2, 3)], []),
    "a rule that takes the pod elsewhere": ([failure(1, action="RestartElsewhere")], ["w1"]),
    "a rule that restarts": ([failure(n, action="Restart") for n in (1, 2, 3)], ["w1"]),
    "a rule that restarts for free": ([failure(n, action="RestartFree") for n in (1, 2, 3)], []),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_node_is_avoided_after_repeated_failures_of_its_own(case: str) -> None:
    failures, expected = OTHERS[case]
    cluster = Cluster()
    wanted = cluster.look(report(*failures))
    assert cluster.avoided == expected
    assert [event.reason for event in wanted.events].count("NodeAvoided") == len(expected)


SETTINGS_CASES: dict[str, tuple[Object | None, list[Object], list[str]]] = {
    "after two": ({"afterFailures": 2, "forSeconds": 3600}, THREE[:2], ["w1"]),
    "off": ({"afterFailures": 0, "forSeconds": 3600}, THREE, []),
    "off, but a rule": ({"afterFailures": 0, "forSeconds": 3600}, [failure(1, action="RestartElsewhere")], ["w1"]),
    "no node may be avoided": (DEFAULT | {"maxNodes": 0}, [failure(1, action="RestartElsewhere")], []),
    "another time": ({"afterFailures": 3, "forSeconds": 60}, [failure(1, age=70), *THREE], ["w1"]),
    "a CRD without the field": (None, THREE, []),
    "one node at a time": (DEFAULT, [failure(n, f"w{n}", action="RestartElsewhere") for n in (1, 2)], ["w1"]),
    "two nodes at a time": (
        DEFAULT | {"maxNodes": 2}, [failure(n, f"w{n}", action="RestartElsewhere") for n in (1, 2)], ["w1", "w2"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SETTINGS_CASES)
def test_avoided_nodes_follow_the_fields_of_the_spec(case: str) -> None:
    avoid, failures, expected = SETTINGS_CASES[case]
    cluster = Cluster(avoid)
    cluster.look(report(*failures))
    assert cluster.avoided == expected


def test_only_node_of_a_job_is_never_avoided_by_count() -> None:
    cluster = Cluster(nodes=("w1", "w1"))
    cluster.look(report(*THREE))
    assert cluster.avoided == []


def test_quarter_of_the_nodes_may_be_avoided() -> None:
    cluster = Cluster(nodes=tuple(f"w{n}" for n in range(8)))
    cluster.look(report(*(failure(n, f"w{n}", action="RestartElsewhere") for n in (1, 2, 3))))
    assert cluster.avoided == ["w1", "w2"]


def test_pods_that_the_user_put_on_a_node_stay_there() -> None:
    template = {"spec": {"nodeName": "w1", "containers": [{"name": "trainer"}]}}
    cluster = Cluster(template=template)
    cluster.look(report(failure(1, action="RestartElsewhere")))
    assert cluster.avoided == []


def test_local_run_avoids_no_node() -> None:
    cluster = Cluster()
    cluster.settings = replace(SETTINGS, can_avoid_nodes=False)
    cluster.look(report(failure(1, action="RestartElsewhere")))
    assert cluster.avoided == []


def test_pods_move_in_one_wave_after_status_and_template_are_written() -> None:
    cluster = Cluster(nodes=("w0", "w1", "w1", "w2"))
    page = report(*THREE)
    first = cluster.look(page)
    assert cluster.status["avoidedNodes"] == [
        {"node": "w1", "reason": "WorkerFailed", "failures": 3, "since": rfc3339(cluster.now),
         "until": rfc3339(cluster.now + 3600)}
    ]  # fmt: skip
    assert (first.actions, first.requeue_after) == ((), 1.0)
    (event,) = [event for event in first.events if event.reason == "NodeAvoided"]
    assert "digits-1, digits-2" in event.message
    second = cluster.look(page)
    assert deleted(second) == []
    assert cluster.template["metadata"]["annotations"][ANNOTATION] == "w1"
    terms = cluster.template["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms == {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["w1"]}]}]
    }
    assert deleted(cluster.look(page)) == [], "the controller could still create a pod of the old template"
    cluster.controller_looks()
    third = cluster.look(page)
    assert deleted(third) == ["digits-1", "digits-2"]
    assert [action.grace_seconds for action in third.actions if isinstance(action, Delete)] == [None, None]
    gone = {"deletionTimestamp": rfc3339(cluster.now)}
    cluster.pods = tuple(
        p | {"metadata": p["metadata"] | gone} if p["spec"]["nodeName"] == "w1" else p for p in cluster.pods
    )
    fourth = cluster.look(report(*THREE, phase="Rendezvous", phaseReason="PodLost"))
    assert fourth.actions == ()
    restarting = condition(cluster.status, "Restarting")
    assert (restarting["reason"], "node w1" in restarting["message"]) == ("NodeAvoided", True)
    cluster.pods = (
        cluster.pods[0], cluster.pod(1, "w3", avoids="w1"), cluster.pod(2, "w4", avoids="w1"), cluster.pods[3],
    )  # fmt: skip
    fifth = cluster.look(report(*THREE))
    assert (fifth.actions, [event.reason for event in fifth.events]) == ((), ["WorkersRunning"])


def test_pod_that_avoids_its_own_node_is_not_deleted_again() -> None:
    """A scheduler, or a person, may put it there all the same."""
    cluster = Cluster()
    page = report(*THREE)
    cluster.look(page)
    cluster.look(page)
    cluster.controller_looks()
    cluster.pods = (cluster.pods[0], cluster.pod(1, "w1", avoids="w1"), cluster.pods[2])
    assert deleted(cluster.look(page)) == []


def moved() -> Cluster:
    """Returns a cluster in which pod 1 waits for another node than w1."""
    cluster = Cluster()
    page = report(*THREE)
    cluster.look(page)
    cluster.look(page)
    cluster.controller_looks()
    assert deleted(cluster.look(page)) == ["digits-1"]
    waiting = {
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "lastTransitionTime": rfc3339(cluster.now),
        "message": "0/3 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 2 Insufficient gpu.",
    }  # fmt: skip
    cluster.pods = (
        cluster.pods[0],
        cluster.pod(1, None, avoids="w1", phase="Pending", conditions=[waiting]),
        cluster.pods[2],
    )
    return cluster


def test_exclusion_is_lifted_where_no_other_node_has_room() -> None:
    cluster = moved()
    page = report(*THREE, phase="Rendezvous", phaseReason="PodLost")
    early = cluster.look(page, after=40)
    assert cluster.avoided == ["w1"]
    assert early.requeue_after is not None
    assert early.requeue_after <= 20
    late = cluster.look(page, after=21)
    assert cluster.avoided == []
    (event,) = [event for event in late.events if event.reason == "NodeAllowed"]
    assert "pod digits-1" in event.message
    assert "Insufficient gpu" in event.message
    cluster.look(page)
    assert "affinity" not in cluster.template["spec"]
    assert ANNOTATION not in cluster.template["metadata"].get("annotations", {})
    cluster.controller_looks()
    assert deleted(cluster.look(page)) == ["digits-1"], "it waits with the old template"
    cluster.pods = (cluster.pods[0], cluster.pod(1, "w1"), cluster.pods[2])
    again = cluster.look(page)
    assert (again.actions, cluster.avoided) == ((), []), "the failures are not held against it twice"
    assert [event.reason for event in again.events if event.reason.startswith("Node")] == []


@pytest.mark.parametrize("message", ["0/3 nodes are available: 3 Insufficient gpu.", "persistentvolumeclaim not found"])
def test_exclusion_stays_where_something_else_is_missing(message: str) -> None:
    cluster = moved()
    cluster.pods[1]["status"]["conditions"][0]["message"] = message
    cluster.look(report(*THREE, phase="Rendezvous", phaseReason="PodLost"), after=600)
    assert cluster.avoided == ["w1"]


def test_node_is_used_again_when_its_time_is_over() -> None:
    cluster = Cluster()
    page = report(*THREE)
    cluster.look(page)
    cluster.look(page)
    cluster.controller_looks()
    cluster.pods = (cluster.pods[0], cluster.pod(1, "w3", avoids="w1"), cluster.pods[2])
    last = cluster.look(page, after=3590)
    assert cluster.avoided == ["w1"]
    assert last.requeue_after is not None
    assert last.requeue_after <= 10
    cluster.look(page, after=10)
    assert cluster.avoided == []
    cluster.look(page)
    assert "affinity" not in cluster.template["spec"]
    cluster.controller_looks()
    assert cluster.look(page).actions == (), "the pod that was moved stays where it is"
    assert "avoidedNodes" not in cluster.status


def test_resumed_job_avoids_the_nodes_of_its_status() -> None:
    cluster = Cluster()
    cluster.look(report(*THREE))
    stored = cluster.status | {"conditions": [c for c in cluster.status["conditions"] if c["type"] != "Running"]}
    resumed = plan(job(stored, **cluster.spec), Observed(), cluster.now, SETTINGS)
    body = next(a.body for a in resumed.actions if not isinstance(a, Delete) and a.body["kind"] == "StatefulSet")  # type: ignore[union-attr]
    assert body["spec"]["template"]["metadata"]["annotations"][ANNOTATION] == "w1"


def test_users_own_annotation_excludes_nothing() -> None:
    template = {"metadata": {"annotations": {ANNOTATION: "w2"}}, "spec": {"containers": [{"name": "trainer"}]}}
    cluster = Cluster(template=template)
    assert ANNOTATION not in cluster.template["metadata"]["annotations"]
    assert cluster.look(agent()).actions == ()


def test_running_job_of_an_earlier_version_is_left_alone() -> None:
    stored, child = started()
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=report(*THREE))
    assert plan(stored, seen, NOW + 5, SETTINGS).actions == ()
