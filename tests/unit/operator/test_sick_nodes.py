"""The sick nodes in the store: which they are, what jobs have done about them, and whom a change wakes."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

from dtj_contract import names
from dtj_core.plan.model import Settings
from dtj_core.plan.node_signs import SickNodeSettings
from dtj_operator.kube.cache.cache import Cache
from dtj_operator.kube.cache.sick_nodes import count_sick_nodes, jobs_on_sick_nodes, node_health
from dtj_operator.kube.cache.store import KINDS, Key, kinds_for
from dtj_operator.kube.resources import JOB, NODE, POD

RULES = SickNodeSettings()
SETTINGS = Settings(agent_image="i", master_key=b"m" * 32, sick_nodes=RULES)


def node(name: str, version: int, status: str = "False", uid: str = "") -> Any:
    condition = {"type": "XidCriticalError", "status": status}
    metadata = {"name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {}, "status": {"conditions": [condition]}}


def pod(job: str, on: str) -> Any:
    labels = {names.LABEL_JOB: job}
    metadata = {"namespace": "ns", "name": f"{job}-0", "uid": f"pod-{job}", "resourceVersion": "5", "labels": labels}
    return {"metadata": metadata, "spec": {"nodeName": on}, "status": {}}


def job(name: str, *entries: Any) -> Any:
    metadata = {"namespace": "ns", "name": name, "uid": f"job-{name}", "resourceVersion": "6"}
    return {"metadata": metadata, "spec": {}, "status": {"avoidedNodes": list(entries)}}


class World:
    """A cache with jobs a and b on w1, and c on w2."""

    def __init__(self) -> None:
        self.woken: list[Key] = []
        self.cache = Cache(Mock(), (), Mock(), lambda key, seconds: self.woken.append(key), kinds_for(SETTINGS))
        for reflector in self.cache._reflectors:
            reflector.listed.set()
        for name, on in (("a", "w1"), ("b", "w1"), ("c", "w2")):
            self.cache.tables[JOB].event(None, "ADDED", job(name))
            self.cache.tables[POD].event(None, "ADDED", pod(name, on))
        self.list(*(node(f"w{number}", number + 1) for number in range(5)))

    def list(self, *nodes: Any, version: str = "20") -> None:
        table = self.cache.tables[NODE]
        self.cache.changed(table, table.replace(None, [table.kind.trim(each) for each in nodes], version))

    def see(self, kind: str, given: Any) -> None:
        table = self.cache.tables[NODE]
        changed = table.event(None, kind, given)
        if changed:
            self.cache.changed(table, changed)


def test_jobs_on_a_node_that_turns_sick_are_woken_and_no_others() -> None:
    world = World()
    assert world.woken == []
    world.see("MODIFIED", node("w1", 30))
    assert world.woken == [], "a heartbeat"
    world.see("MODIFIED", node("w1", 31, "True"))
    assert sorted(world.woken) == [("ns", "a"), ("ns", "b")]
    world.woken.clear()
    world.see("MODIFIED", node("w4", 32, "True"))
    assert sorted(world.woken) == [("ns", "a"), ("ns", "b")], "the number of sick nodes decides what is believed"


def test_sick_nodes_are_those_of_the_newest_objects() -> None:
    world = World()
    table = world.cache.node_table()
    assert table is not None
    world.see("MODIFIED", node("w1", 31, "True"))
    world.see("MODIFIED", node("w1", 30))
    assert list(table.sick) == ["w1"], "an older state"
    world.see("MODIFIED", node("w1", 33))
    assert list(table.sick) == []
    world.see("MODIFIED", node("w1", 34, "True"))
    world.see("DELETED", node("w1", 35, "True"))
    assert (list(table.sick), len(table)) == ([], 4)
    world.see("ADDED", node("w1", 36, "True", uid="new"))
    world.list(node("w2", 40, "True"), version="50")
    assert (list(table.sick), len(table)) == (["w2"], 1), "a list replaces what was known"


def test_job_sees_what_others_have_begun_only_where_it_has_to_decide() -> None:
    world = World()
    left = {"node": "w3", "reason": "NodeSick", "pods": 1, "since": "2026-01-01T00:00:00Z"}
    later = left | {"since": "2026-01-01T00:01:00Z"}
    beside = {"node": "w4", "reason": "NodeSick", "since": "2026-01-01T00:02:00Z"}
    for name, entries in (
        ("d", [left, beside]),
        ("e", [later]),
        ("g", [left]),
        ("f", [left | {"reason": "WorkerFailed"}]),
    ):
        world.cache.tables[JOB].event(None, "ADDED", job(name, *entries))
    for number, name in enumerate(("w1", "w3")):
        world.see("MODIFIED", node(name, 31 + number, "True"))
    found = node_health(world.cache, world.cache.pods(("ns", "a")))
    assert found is not None
    assert (found.total, sorted(found.sick), found.in_use) == (5, ["w1", "w3"], {"w1"})
    assert found.begun == {"w3": 1767225660.0}
    other = node_health(world.cache, world.cache.pods(("ns", "c")))
    assert other is not None
    assert (sorted(other.sick), other.begun) == (["w1", "w3"], {})


def test_sick_nodes_are_counted_by_whether_they_are_believed() -> None:
    world = World()

    def counts() -> tuple[int, int]:
        return (
            count_sick_nodes(world.cache, RULES, believed=True), count_sick_nodes(world.cache, RULES, believed=False),
        )  # fmt: skip

    assert counts() == (0, 0)
    for number in range(2):
        world.see("MODIFIED", node(f"w{number}", 31 + number, "True"))
    assert counts() == (2, 0)
    world.see("MODIFIED", node("w2", 41, "True"))
    assert counts() == (0, 3)


def test_operator_without_the_option_watches_no_nodes() -> None:
    kinds = kinds_for(Settings(agent_image="i", master_key=b"m" * 32))
    assert kinds == KINDS
    cache = Cache(Mock(), (), Mock(), lambda key, seconds: None, kinds)
    assert node_health(cache, ()) is None
    assert jobs_on_sick_nodes(cache) == set()
    assert count_sick_nodes(cache, None, believed=True) == 0
