"""The store: every order of lists, watch events and answers ends in the newest state, and without ghosts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dtj_contract import names
from dtj_operator.kube.cache.store import KINDS, Store, Table
from dtj_operator.kube.cache.trim import trim_pod
from dtj_operator.kube.resources import JOB, POD, RUNTIME, STATEFUL_SET

KEY = ("ns", "j")
ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"


def pod(
    version: int, name: str = "j-0", uid: str = "p0", job: str | None = "j", namespace: str = "ns", **status: Any
) -> Any:
    labels = {} if job is None else {names.LABEL_JOB: job}
    metadata = {"namespace": namespace, "name": name, "uid": uid, "resourceVersion": str(version), "labels": labels}
    return trim_pod({"metadata": metadata, "status": status})


def table() -> Table:
    return Table(next(kind for kind in KINDS if kind.resource is POD))


def versions(of: Table, key: tuple[str, str] = KEY) -> dict[str, str]:
    return {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in of.of_job(key)}


def test_list_replaces_what_was_known_so_that_no_ghost_stays() -> None:
    pods = table()
    assert pods.replace(None, [pod(1), pod(2, "j-1", "p1")], "10") == {KEY}
    assert pods.replace(None, [pod(1)], "20") == {KEY}
    assert versions(pods) == {"j-0": "1"}
    assert pods.replace(None, [pod(1)], "30") == set(), "nothing has changed"
    assert pods.replace(None, [], "40") == {KEY}
    assert (len(pods), list(pods.keys())) == (0, [])


def test_list_of_one_namespace_leaves_the_others() -> None:
    pods = table()
    pods.replace("ns", [pod(1)], "10")
    pods.replace("other", [pod(2, uid="p9", namespace="other")], "10")
    assert pods.replace("other", [], "20") == {("other", "j")}
    assert versions(pods) == {"j-0": "1"}


def test_object_that_was_replaced_under_its_name_is_the_new_one() -> None:
    pods = table()
    pods.replace(None, [pod(1)], "10")
    assert pods.replace(None, [pod(15, uid="new")], "20") == {KEY}
    assert pods.of_job(KEY)[0]["metadata"]["uid"] == "new"
    assert pods.event(None, DELETED, pod(14)) == set(), "the end of its predecessor"
    assert versions(pods) == {"j-0": "15"}


@pytest.mark.parametrize(
    ("events", "left", "woken"),
    [
        ([(ADDED, pod(11))], {"j-0": "11"}, 1),
        ([(ADDED, pod(11)), (MODIFIED, pod(12, phase="Running"))], {"j-0": "12"}, 2),
        ([(ADDED, pod(11)), (MODIFIED, pod(12))], {"j-0": "12"}, 1),
        ([(ADDED, pod(11)), (DELETED, pod(12))], {}, 2),
        ([(ADDED, pod(11)), (ADDED, pod(11))], {"j-0": "11"}, 1),
        ([(MODIFIED, pod(12)), (ADDED, pod(11, phase="Pending"))], {"j-0": "12"}, 1),
        ([(ADDED, pod(11)), (DELETED, pod(12)), (ADDED, pod(13, uid="p9"))], {"j-0": "13"}, 3),
        ([(DELETED, pod(12))], {}, 0),
        ([(ADDED, pod(11, job=None))], {}, 0),
    ],
    ids=[
        "added", "changed", "changed in nothing that is read", "deleted", "twice", "out of order", "recreated",
        "unknown", "of no job",
    ],
)  # fmt: skip
def test_watch_events_are_merged_by_version(events: list[Any], left: dict[str, str], woken: int) -> None:
    pods = table()
    pods.replace(None, [], "10")
    changes = [pods.event(None, kind, each) for kind, each in events]
    assert versions(pods) == left
    assert sum(map(len, changes)) == woken


def test_object_that_moves_to_another_job_wakes_both() -> None:
    pods = table()
    pods.event(None, ADDED, pod(11))
    assert pods.event(None, MODIFIED, pod(12, job="k")) == {KEY, ("ns", "k")}
    assert (versions(pods), versions(pods, ("ns", "k"))) == ({}, {"j-0": "12"})
    assert pods.event(None, MODIFIED, pod(13, job=None)) == {("ns", "k")}
    assert len(pods) == 0


def test_answer_to_a_write_is_known_before_the_watch_shows_it() -> None:
    pods = table()
    pods.replace(None, [pod(5)], "10")
    pods.answer(pod(12, phase="Running"))
    assert versions(pods) == {"j-0": "12"}
    assert pods.event(None, MODIFIED, pod(11)) == set(), "older than the answer"
    assert pods.event(None, MODIFIED, pod(12, phase="Running")) == set(), "our own write wakes nobody"
    assert pods.event(None, DELETED, pod(13)) == {KEY}


def test_late_answer_is_no_ghost_of_what_the_watch_has_shown_deleted() -> None:
    pods = table()
    pods.replace(None, [pod(5)], "10")
    pods.event(None, MODIFIED, pod(12))
    pods.event(None, DELETED, pod(13))
    pods.answer(pod(12))
    assert versions(pods) == {}


def test_list_that_is_older_than_an_answer_keeps_the_answer() -> None:
    pods = table()
    pods.replace(None, [pod(5)], "10")
    pods.answer(pod(25, "j-1", "p1"))
    pods.answer(pod(26))
    pods.replace(None, [pod(5)], "20")
    assert versions(pods) == {"j-0": "26", "j-1": "25"}
    pods.replace(None, [], "30")
    assert versions(pods) == {}, "the newer list knows better"


def test_deleted_object_does_not_come_back_with_late_events_or_lists() -> None:
    pods = table()
    pods.replace(None, [pod(5)], "10")
    pods.deleted("ns", "j-0", "p0")
    assert pods.event(None, MODIFIED, pod(11)) == set()
    pods.replace(None, [pod(11)], "12")
    assert versions(pods) == {}
    assert pods.event(None, ADDED, pod(14, uid="next")) == {KEY}, "its successor is another object"
    pods.event(None, DELETED, pod(13))
    assert versions(pods) == {"j-0": "14"}
    assert not pods._deleted, "nothing is remembered once the watch has shown the end"


def test_event_that_shows_a_known_version_is_not_trimmed_again() -> None:
    trimmed: list[Any] = []

    def trim(obj: Any) -> Any:
        trimmed.append(obj)
        return obj

    jobs = Table(replace(next(kind for kind in KINDS if kind.resource is JOB), trim=trim))
    metadata = {"namespace": "ns", "name": "j", "uid": "u", "resourceVersion": "7"}
    jobs.answer({"metadata": metadata})
    assert jobs.event(None, MODIFIED, {"metadata": metadata}) == set()
    assert len(trimmed) == 1
    newer = {"metadata": metadata | {"resourceVersion": "8"}, "status": {"phase": "Running"}}
    assert jobs.event(None, MODIFIED, newer) == {KEY}


def test_list_without_a_deleted_object_ends_the_memory_of_it() -> None:
    pods = table()
    pods.replace(None, [pod(5)], "10")
    pods.deleted("ns", "j-0", "p0")
    pods.deleted("ns", "j-9", "unknown")
    pods.replace(None, [], "20")
    assert not pods._deleted


def test_job_is_known_by_its_own_name_and_its_child_by_the_label() -> None:
    store = Store()
    metadata = {"namespace": "ns", "name": "j", "uid": "u", "resourceVersion": "1"}
    store.tables[JOB].event(None, ADDED, {"metadata": metadata, "spec": {}})
    labelled = {"metadata": metadata | {"labels": {names.LABEL_JOB: "j"}}, "spec": {}}
    store.tables[STATEFUL_SET].event(None, ADDED, labelled)
    store.tables[POD].event(None, ADDED, pod(3))
    assert (store.job(KEY) or {})["metadata"] == metadata
    assert (store.child(STATEFUL_SET, KEY) or {})["metadata"] == labelled["metadata"]
    assert [each["metadata"]["name"] for each in store.pods(KEY)] == ["j-0"]
    assert store.jobs() == [store.job(KEY)]
    assert store.child(STATEFUL_SET, ("ns", "k")) is None


def test_runtime_wakes_the_jobs_that_refer_to_it_and_have_not_taken_it() -> None:
    store = Store()
    taken = {"waits": None, "has": "new", "had another": "old", "refers elsewhere": None}
    for number, (name, runtime) in enumerate(taken.items()):
        job = {
            "metadata": {"namespace": "ns", "name": name, "uid": name, "resourceVersion": str(number + 1)},
            "spec": {"runtimeRef": {"name": "other" if name == "refers elsewhere" else "new"}},
            "status": {} if runtime is None else {"runtime": {"name": runtime}},
        }
        store.tables[JOB].event(None, "ADDED", job)
    assert store.tables[RUNTIME].served
    assert {name for _, name in store.referring_jobs("new")} == {"waits", "had another"}
