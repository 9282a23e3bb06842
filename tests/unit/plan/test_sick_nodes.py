"""Nodes that are called sick: whose signs are believed, which job leaves when, and what happens to its pods."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from dtj_core.plan.model import Apply, Delete, Plan
from dtj_core.plan.node_signs import NodeHealth, SickNode, SickNodeSettings, Sign
from dtj_core.plan.sick_nodes import believe, departure, largest_number
from dtj_core.plan.times import rfc3339
from tests.unit.plan.objects import NOW, SETTINGS, World, agent, condition, job, pod

Object = dict[str, Any]
RULES = SickNodeSettings(interval_seconds=60, job_interval_seconds=600)
ANNOTATION = "training.dtj.dev/avoided-nodes"
XID = Sign("condition XidCriticalError", "condition XidCriticalError is True (Xid79): GPU has fallen off the bus")
LABEL = Sign("label state", "label state=bad")
CORDON = Sign("cordon", "it is cordoned")


def sick(*signs: Sign) -> SickNode:
    return SickNode(signs=signs or (XID,), takes_pods=CORDON not in signs)


def health(total: int = 20, **nodes: SickNode) -> NodeHealth:
    """Returns the nodes as a job with pods on w0, w1 and w2 sees them."""
    return NodeHealth(total=total, sick=nodes, in_use=frozenset(nodes.keys() & {"w0", "w1", "w2"}))


# --- whose signs are believed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "percent", "expected"),
    [(1, 20, 0), (2, 20, 1), (3, 20, 2), (5, 20, 2), (16, 20, 3), (100, 20, 20), (100, 1, 2), (4, 100, 3)],
)
def test_number_of_sick_nodes_is_a_share_and_leaves_a_node_to_go_to(total: int, percent: int, expected: int) -> None:
    assert largest_number(total, replace(RULES, max_percent=percent)) == expected


def nodes(first: int, last: int, *signs: Sign) -> dict[str, SickNode]:
    return {f"w{n:02}": sick(*signs) for n in range(first, last + 1)}


BELIEFS: dict[str, tuple[dict[str, SickNode], list[str], list[str]]] = {
    "none": ({}, [], []),
    "as many as may be": (nodes(0, 3), ["w00", "w01", "w02", "w03"], []),
    "one too many": (nodes(0, 4), [], [XID.name]),
    "every node": (nodes(0, 19), [], [XID.name]),
    "a rare sign beside one on all nodes": (
        nodes(0, 19, CORDON) | {"w03": sick(XID, CORDON)}, ["w03"], [CORDON.name],
    ),
    "two signs of the same nodes": (nodes(0, 3, XID, LABEL), ["w00", "w01", "w02", "w03"], []),
    "two signs that are too many together": (
        nodes(0, 1, XID) | nodes(5, 8, LABEL), ["w00", "w01"], [LABEL.name],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BELIEFS)
def test_sign_of_too_many_nodes_is_not_believed(case: str) -> None:
    given, expected, doubted = BELIEFS[case]
    found = believe(health(20, **given), RULES)
    assert (list(found.messages), list(found.doubted)) == (expected, doubted)


def test_message_has_the_signs_that_are_believed_alone() -> None:
    found = believe(health(20, **(nodes(0, 19, CORDON) | {"w03": sick(CORDON, XID)})), RULES)
    assert found.messages == {"w03": XID.message}


# --- when a job leaves ------------------------------------------------------------------------------------------------


def entry(node: str, age: float, **more: Any) -> Object:
    times = {"since": rfc3339(NOW - age), "until": rfc3339(NOW + 3600 - age)}
    return {"node": node, "reason": "NodeSick", "pods": 1} | times | more


# The clock's slot: with two nodes waiting, w1 has the turn in even ones, and w2 in odd ones.
EVEN = NOW - NOW % 120
Case = tuple[Object, list[str], float | None]
DEPARTURES: dict[str, Case] = {
    "no pod on a sick node": ({"occupied": {"w5"}}, [], None),
    "a pod on a sick node": ({}, ["w1"], 0),
    "a node that the job avoids already": ({"entries": [entry("w1", 5)]}, [], None),
    "a node that was allowed again for want of room": ({"entries": [entry("w1", 5, lifted="t")]}, [], None),
    "a job that has just moved": ({"entries": [entry("w8", 100)]}, [], 500),
    "a job that moved long ago": ({"entries": [entry("w8", 700)]}, ["w1"], 0),
    "a job that began beside a sick node": ({"entries": [entry("w8", 100, pods=None)]}, ["w1"], 0),
    "a job that avoids a node for its failures": (
        {"entries": [entry("w8", 100, reason="WorkerFailed", failures=3)]}, ["w1"], 0,
    ),
    "jobs have just left another node": ({"begun": {"w8": NOW - 20}}, [], 40),
    "jobs left another node long ago": ({"begun": {"w8": NOW - 61}}, ["w1"], 0),
    "another job leaves this node just now": ({"begun": {"w1": NOW - 20, "w8": NOW - 10}}, ["w1"], 0),
    "a clock that is behind the last leader's": ({"begun": {"w8": NOW + 30}}, [], 60),
    "a clock that is behind that of the job's last move": ({"entries": [entry("w8", -30)]}, [], 600),
    "a clock that was set back": ({"begun": {"w8": NOW + 5000}}, ["w1"], 0),
    "two nodes of one job": ({"occupied": {"w1", "w2"}, "sick": ["w1", "w2"]}, ["w1", "w2"], 0),
    "a node whose turn it is": ({"sick": ["w1", "w2"], "now": EVEN}, ["w1"], 0),
    "a node whose turn it is not": ({"sick": ["w1", "w2"], "now": EVEN + 70}, [], 50),
    "a sick node without pods takes no turn": ({"sick": ["w1", "w2"], "in_use": {"w1"}, "now": EVEN + 70}, ["w1"], 0),
    "a node that is left just now takes no turn": (
        {"sick": ["w1", "w2"], "now": EVEN + 70, "begun": {"w2": EVEN + 20}}, [], 10,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DEPARTURES)
def test_job_leaves_a_sick_node_when_it_may(case: str) -> None:
    given, expected, wait = DEPARTURES[case]
    given = {"occupied": {"w1"}, "entries": [], "sick": ["w1"], "begun": {}, "now": NOW} | given
    seen = NodeHealth(
        total=20,
        sick={name: sick() for name in given["sick"]},
        in_use=frozenset(given.get("in_use", given["sick"])),
        begun=given["begun"],
    )
    found = departure(given["occupied"], given["entries"], given["sick"], seen, given["now"], RULES)
    assert sorted(found.nodes) == expected
    assert (found.wait or 0) == pytest.approx(wait or 0, abs=1)
    assert (found.wait is None) == (wait in (None, 0))


@pytest.mark.parametrize("count", [2, 3, 7])
def test_nodes_that_turn_sick_at_once_are_left_one_after_the_other(count: int) -> None:
    """Each job sees what the others have stored, and waits as long as the decision has it."""
    waiting, begun, now = {f"w{n}" for n in range(count)}, dict[str, float](), NOW + 17.0
    seen = {name: sick() for name in waiting}
    while waiting:
        health = NodeHealth(total=99, sick=seen, in_use=frozenset(waiting), begun=dict(begun))
        found = {name: departure({name}, [], seen, health, now, RULES) for name in sorted(waiting)}
        leave = [name for name, each in found.items() if each.nodes]
        assert len(leave) <= 1, "before either decision is stored"
        for name in leave:
            begun[name] = now
            waiting.remove(name)
        now += min((each.wait for each in found.values() if each.wait), default=60.0)
    times = sorted(begun.values())
    assert all(later - sooner >= 59.9 for sooner, later in itertools.pairwise(times))
    assert times[0] == NOW + 17.0
    assert times[-1] - times[0] <= 61.0 * count * count


# --- what happens to the pods -----------------------------------------------------------------------------------------


class Cluster(World):
    """A running job whose pods are on w0, w1, w2, and a controller that recreates deleted pods on w7."""

    def __init__(self, rules: SickNodeSettings | None = RULES, **spec: Any) -> None:
        avoid = {"afterFailures": 3, "forSeconds": 3600} | spec.pop("avoid", {})
        super().__init__(job(restart={"avoidNodes": avoid}, **spec), replace(SETTINGS, sick_nodes=rules))
        self.settle(NOW)
        self.see(pods=tuple(pod(ordinal, owner=self.set_uid) for ordinal in range(3)), agent=agent())
        self.settle(NOW + 1)
        self.writes.clear()
        self.events.clear()

    def call_sick(self, total: int = 20, **nodes: SickNode) -> None:
        self.see(nodes=health(total, **nodes))

    def run(self, now: float, *, rounds: int = 6) -> list[Plan]:
        """Reconciles as often as the controller of the StatefulSet takes to replace the pods."""
        made = []
        for _ in range(rounds):
            found = self.reconcile(now)
            assert found is not None
            made.append(found)
            self.recreate()
        return made

    def recreate(self, node: str = "w7") -> None:
        assert self.observed.stateful_set is not None
        there = {each["metadata"]["name"] for each in self.observed.pods}
        annotations = self.observed.stateful_set["spec"]["template"]["metadata"].get("annotations", {})
        for ordinal in range(3):
            if f"digits-{ordinal}" not in there:
                new = pod(ordinal, owner=self.set_uid)
                new["metadata"] |= {"uid": f"new-{ordinal}", "annotations": annotations}
                new["spec"] = {"nodeName": node}
                self.see(pods=(*self.observed.pods, new))

    @property
    def placed(self) -> list[str]:
        return [p["spec"]["nodeName"] for p in sorted(self.observed.pods, key=lambda p: p["metadata"]["name"])]

    @property
    def avoided(self) -> list[str]:
        return [each["node"] for each in self.status.get("avoidedNodes", []) if "lifted" not in each]


def test_pods_on_a_sick_node_are_recreated_elsewhere_and_the_event_quotes_the_node() -> None:
    cluster = Cluster()
    cluster.call_sick(w1=sick())
    plans = cluster.run(NOW + 5)
    assert cluster.placed == ["w0", "w7", "w2"]
    assert cluster.writes.count("delete Pod") == 1
    [event] = [each for each in cluster.events if each.reason == "NodeSick"]
    assert event.type == "Warning"
    assert f"node w1 is sick: {XID.message}" in event.message
    assert "digits-1" in event.message
    [stored] = cluster.status["avoidedNodes"]
    assert (stored["node"], stored["reason"], stored["message"], stored["pods"]) == ("w1", "NodeSick", XID.message, 1)
    [delete] = [action for each in plans for action in each.actions if isinstance(action, Delete)]
    assert delete.grace_seconds is None, "the ranks save within the pod's own grace period"
    looks = [each.requeue_after for each in plans[:2]]
    assert all(look is not None and look <= 0.2 for look in looks[:1])


def test_budget_and_counts_of_restarts_are_not_touched() -> None:
    cluster = Cluster()
    before = cluster.status["restarts"]
    cluster.call_sick(w1=sick())
    cluster.run(NOW + 5)
    assert cluster.status["restarts"] == before
    assert "failures" not in cluster.status or cluster.status["failures"] == []


def test_terminating_pod_shows_the_nodes_own_text_in_the_condition() -> None:
    cluster = Cluster()
    cluster.call_sick(w1=sick())
    cluster.run(NOW + 5, rounds=1)
    gone = [p if p["metadata"]["name"] != "digits-1" else pod(1, owner=cluster.set_uid, deleted=True)
            for p in cluster.observed.pods]  # fmt: skip
    cluster.see(pods=tuple(gone), agent=agent(phase="Rendezvous", phaseReason="PodLost"))
    cluster.settle(NOW + 6)
    found = condition(cluster.status, "Restarting")
    assert (found["status"], found["reason"]) == ("True", "NodeSick")
    assert XID.message in found["message"]


def test_pod_that_leaves_a_sick_node_by_itself_is_no_reason_to_announce_anything() -> None:
    """A drain cordons the node, and evicts the pod right after."""
    cluster = Cluster()
    gone = pod(1, owner=cluster.set_uid, deleted=True)
    cluster.see(pods=(cluster.observed.pods[0], gone, cluster.observed.pods[2]))
    cluster.call_sick(w1=sick(CORDON))
    cluster.run(NOW + 5)
    assert (cluster.avoided, [each for each in cluster.events if each.reason == "NodeSick"]) == ([], [])


def test_new_pods_avoid_other_sick_nodes_but_no_cordoned_ones() -> None:
    cluster = Cluster()
    cluster.call_sick(w1=sick(), w5=sick(LABEL), w6=sick(CORDON))
    cluster.run(NOW + 5)
    assert cluster.avoided == ["w1", "w5"]
    assert ["pods" in each for each in cluster.status["avoidedNodes"]] == [True, False]
    [event] = [each for each in cluster.events if each.reason == "NodeSick"]
    assert "w5" not in event.message


STAYS: dict[str, Object] = {
    "the installation leaves no node": {"rules": None},
    "the job avoids no node": {"avoid": {"maxNodes": 0}},
    "the user has chosen the node": {
        "template": {"spec": {"nodeName": "w1", "containers": [{"name": "trainer"}]}}
    },
}  # fmt: skip


@pytest.mark.parametrize("case", STAYS)
def test_job_stays_on_a_sick_node_where_it_has_to(case: str) -> None:
    cluster = Cluster(**STAYS[case])
    cluster.call_sick(w1=sick())
    cluster.run(NOW + 5)
    assert (cluster.placed, cluster.avoided) == (["w0", "w1", "w2"], [])
    assert [each.reason for each in cluster.events] == []


def test_detector_that_calls_every_node_sick_moves_nothing() -> None:
    cluster = Cluster()
    cluster.call_sick(10, **{f"w{n}": sick() for n in range(10)})
    cluster.run(NOW + 5)
    assert (cluster.writes, cluster.avoided) == ([], [])


def test_only_node_of_a_cluster_is_never_left() -> None:
    cluster = Cluster()
    cluster.call_sick(1, w1=sick())
    cluster.run(NOW + 5)
    assert cluster.writes == []


def test_job_that_waits_for_its_turn_is_looked_at_again_then() -> None:
    cluster = Cluster()
    cluster.see(nodes=replace(health(20, w1=sick()), begun={"w8": NOW - 30}))
    found = cluster.reconcile(NOW + 5)
    assert found is not None
    assert (cluster.avoided, found.requeue_after) == ([], 2.0), "the usual look comes before"
    cluster.settings = replace(cluster.settings, status_poll_seconds=1000.0)
    found = cluster.reconcile(NOW + 5)
    assert found is not None
    assert found.requeue_after == pytest.approx(25)
    cluster.run(NOW + 30)
    assert cluster.avoided == ["w1"]


def test_node_stays_excluded_while_it_is_sick_and_no_longer() -> None:
    cluster = Cluster()
    cluster.call_sick(w1=sick())
    cluster.run(NOW + 5)
    for hours in range(1, 5):
        cluster.run(NOW + 5 + 1900 * hours)
        assert cluster.avoided == ["w1"]
    cluster.call_sick()
    cluster.run(NOW + 5 + 1900 * 4 + 3601)
    assert cluster.avoided == []
    assert cluster.writes.count("delete Pod") == 1


def test_exclusion_that_was_lifted_for_want_of_room_is_not_renewed() -> None:
    cluster = Cluster()
    cluster.call_sick(w1=sick())
    cluster.run(NOW + 5)
    assert cluster.job is not None
    [stored] = cluster.job["status"]["avoidedNodes"]
    cluster.job["status"]["avoidedNodes"] = [stored | {"lifted": rfc3339(NOW + 70)}]
    cluster.see(pods=tuple(pod(ordinal, owner=cluster.set_uid) for ordinal in range(3)))
    cluster.run(NOW + 3000)
    assert cluster.placed == ["w0", "w1", "w2"], "the job stays where it found room"
    cluster.run(NOW + 3700)
    assert cluster.placed == ["w0", "w7", "w2"], "an hour later it tries again"


def test_sick_nodes_leave_the_room_for_nodes_that_break_attempts() -> None:
    cluster = Cluster()
    cluster.call_sick(w1=sick())
    cluster.run(NOW + 5)
    failures = [
        {"attempt": n, "rank": 2, "ordinal": 2, "pod": "digits-2", "node": "w2", "reason": "WorkerFailed",
         "message": "CUDA error", "time": NOW + 50 + n}
        for n in (1, 2, 3)
    ]  # fmt: skip
    cluster.see(agent=agent(attempt=4, failures=failures))
    cluster.run(NOW + 60)
    assert sorted(cluster.avoided) == ["w1", "w2"]


@pytest.mark.parametrize("total", [2, 20])
def test_new_job_does_not_begin_on_a_sick_node(total: int) -> None:
    world = World(job(restart={"avoidNodes": {"afterFailures": 3, "forSeconds": 3600}}),
                  replace(SETTINGS, sick_nodes=RULES))  # fmt: skip
    world.see(nodes=health(total, w1=sick(), **({"w6": sick(CORDON)} if total > 2 else {})))
    first = world.reconcile(NOW)
    assert first is not None
    body = next(a.body for a in first.actions if isinstance(a, Apply) and a.body["kind"] == "StatefulSet")
    assert body["spec"]["template"]["metadata"]["annotations"][ANNOTATION] == "w1"
    assert [each["node"] for each in world.status["avoidedNodes"]] == ["w1"]
    world.settle(NOW + 1)
    assert world.runs == 1


@pytest.mark.parametrize("crashes", list(itertools.product(range(4), repeat=2)), ids=str)
def test_operator_killed_between_any_two_writes_moves_each_pod_once(crashes: tuple[int, ...]) -> None:
    cluster = Cluster()
    cluster.call_sick(w1=sick(), w5=sick(LABEL))
    for steps_done in (*crashes, None, None, None, None):
        cluster.reconcile(NOW + 5, crash_after=steps_done)
        cluster.recreate()
    cluster.settle(NOW + 5)
    assert cluster.writes.count("delete Pod") == 1
    assert cluster.placed == ["w0", "w7", "w2"]
