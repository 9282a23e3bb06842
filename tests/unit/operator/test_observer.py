"""Observing: children come from the cache, reports of agents from memory, and nothing else is read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dtj_contract import names
from dtj_core.plan.leader_search import reachable_pods
from dtj_core.plan.model import Settings
from dtj_operator.following.listener import Heard
from dtj_operator.kube.cache.store import Key, Store
from dtj_operator.kube.observer import Observer
from dtj_operator.kube.resources import POD, SERVICE, STATEFUL_SET, Resource
from tests.unit.operator.fakes import FakeCache, FakeClient, FakeListeners, job

KEY = ("ns", "j")


def settings(port: int) -> Settings:
    return Settings(agent_image="i", master_key=b"m" * 32, agent_port=port)


def pod(ordinal: int = 0, ip: str | None = "127.0.0.1", state: str = "running") -> Any:
    status: Any = {
        "containerStatuses": [{"name": "side", "state": {}}, {"name": names.CONTAINER, "state": {state: {}}}]
    }
    if ip:
        status["podIP"] = ip
    labels = {
        names.LABEL_MANAGED_BY: names.MANAGER,
        names.LABEL_JOB: "j",
        names.LABEL_POD_INDEX: str(ordinal),
    }
    metadata = {"name": f"j-{ordinal}", "uid": f"p{ordinal}", "labels": labels, "ownerReferences": [{"uid": "set"}]}
    return {"metadata": metadata, "status": status}


SET = {"metadata": {"name": "j", "uid": "set", "ownerReferences": [{"uid": "u1"}]}}


def client_with(*pods: Any) -> FakeClient:
    """Returns a client that serves a job, its StatefulSet, and these pods."""
    client = FakeClient()
    client.objects["distributedtrainingjobs", "j"] = job()
    client.objects["statefulsets", "j"] = SET
    for each in pods:
        client.objects["pods", each["metadata"]["name"]] = each
    return client


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def observing(
    client: FakeClient, test: Callable[[Observer], Awaitable[None]], listeners: FakeListeners | None = None
) -> None:
    async def main() -> None:
        await test(Observer(FakeCache(client), client, listeners or FakeListeners()))  # type: ignore[arg-type]

    asyncio.run(main())


async def look(observer: Observer) -> Any:
    found = observer.get_job(KEY)
    assert found is not None
    return await observer.observe(found)


def test_observed_children_are_as_served_and_missing_ones_are_none() -> None:
    client = FakeClient()
    client.objects["distributedtrainingjobs", "j"] = job()

    async def test(observer: Observer) -> None:
        observed = await look(observer)
        assert (observed.stateful_set, observed.service, observed.pods, observed.agent) == (None, None, (), None)
        client.objects["statefulsets", "j"] = {"metadata": {"name": "j", "uid": "set"}, "newField2027": 1}
        client.objects["pods", "j-1"] = pod(1)
        observed = await look(observer)
        assert observed.stateful_set == {"metadata": {"name": "j", "uid": "set"}, "newField2027": 1}
        assert observed.pods == (pod(1),)
        assert observer.get_job(("ns", "other")) is None

    observing(client, test)


def test_children_of_other_jobs_and_namespaces_are_not_observed() -> None:
    client = FakeClient()
    client.objects["distributedtrainingjobs", "j"] = job()
    other = pod(0)
    other["metadata"]["labels"] |= {names.LABEL_JOB: "k"}
    client.objects["pods", "k-0"] = other
    client.objects["services", "j"] = {"metadata": {"name": "j", "namespace": "elsewhere"}}

    async def test(observer: Observer) -> None:
        observed = await look(observer)
        assert (observed.service, observed.pods) == (None, ())

    observing(client, test)


def test_look_at_a_job_reads_nothing_from_the_api_server() -> None:
    client = client_with(pod())

    async def test(observer: Observer) -> None:
        for _ in range(3):
            assert (await look(observer)).stateful_set is SET
        assert client.calls == []

    observing(client, test)


RUNNING = {"conditions": [{"type": "Running", "status": "True"}]}
RESTARTING = {"conditions": [{"type": "Restarting", "status": "True"}]}


def at(version: int, obj: Any, **metadata: Any) -> Any:
    """Returns `obj` as the API server serves it at this version."""
    return obj | {"metadata": obj["metadata"] | {"namespace": "ns", "resourceVersion": str(version)} | metadata}


def stateful_set(version: int, uid: str = "set") -> Any:
    return at(
        version, {"metadata": {"name": "j", "labels": pod()["metadata"]["labels"]}, "spec": {"replicas": 2}}, uid=uid
    )


def group_pod(ordinal: int, version: int, ready: bool = True, state: str = "running", **metadata: Any) -> Any:
    one = at(version, pod(ordinal, state=state), uid=f"p{ordinal}-{version}", **metadata)
    one["status"]["containerStatuses"] = one["status"]["containerStatuses"][1:]
    one["status"]["conditions"] = [{"type": "Ready", "status": str(ready)}]
    return one


WHOLE = [group_pod(0, 10), group_pod(1, 10)]
COLD = [group_pod(0, 10, ready=False), group_pod(1, 10, ready=False)]
ENDING = [group_pod(0, 10), group_pod(1, 10, deletionTimestamp="2026-11-29T00:00:00Z")]


@pytest.mark.parametrize(
    ("status", "sets", "watched", "reads"),
    [
        (RUNNING, [stateful_set(9)], [], True),
        (RUNNING, [stateful_set(9)], WHOLE[:1], True),
        (RUNNING, [stateful_set(9)], [WHOLE[0], group_pod(1, 10, state="waiting")], True),
        (RUNNING, [stateful_set(9)], ENDING, True),
        (RUNNING, [stateful_set(9)], [group_pod(0, 10), group_pod(2, 10)], True),
        (RUNNING, [], WHOLE, True),
        (RUNNING, [stateful_set(9, "earlier run")], WHOLE, True),
        (RUNNING | {"readyReplicas": 2}, [stateful_set(9)], COLD, True),
        (RESTARTING, [stateful_set(9)], [], True),
        (RUNNING | {"readyReplicas": 2}, [stateful_set(9)], WHOLE, False),
        (RUNNING, [stateful_set(9)], COLD, False),
        ({"conditions": [], "readyReplicas": 2}, [stateful_set(9)], [], False),
        ({}, [], [], False),
    ],
    ids=[
        "no pod there, none counted as ready",
        "one not there yet",
        "one does not run yet",
        "one is terminating",
        "one is of a larger group",
        "the StatefulSet is not there yet",
        "the StatefulSet is of an earlier run",
        "none ready yet",
        "a job that restarts",
        "as the status has it",
        "no pod was ready",
        "a job that does not run",
        "a new job",
    ],
)
def test_new_leader_reads_the_group_that_its_watches_have_not_shown(
    status: Any, sets: list[Any], watched: list[Any], reads: bool
) -> None:
    client = FakeClient()
    client.objects["statefulsets", "j"] = stateful_set(19)
    for ordinal in range(2):
        client.objects["pods", f"j-{ordinal}"] = group_pod(ordinal, 20)
    store = Store()
    store.tables[STATEFUL_SET].replace(None, sets, "10")
    store.tables[POD].replace(None, watched, "10")
    running = job(status=status)

    async def main() -> None:
        observer = Observer(store, client, FakeListeners())  # type: ignore[arg-type]
        for term in (1, 2):
            observer.begin()
            for _ in range(3):
                observed = await observer.observe(running)
            served = [group_pod(ordinal, 20) for ordinal in range(2)]
            group = [one for one in observed.pods if one["metadata"]["name"] != "j-2"]
            assert [one["metadata"]["uid"] for one in group] == [
                one["metadata"]["uid"] for one in (served if reads else watched)
            ]
            # In the second term, the store has what was read in the first.
            lists = [("list", "statefulsets"), ("list", "pods")] if reads else []
            assert [call[:2] for call in client.calls] == lists, term

    asyncio.run(main())


def test_new_leader_reads_pods_when_the_status_comes_after_its_first_look() -> None:
    client, store = FakeClient(), Store()
    client.objects["pods", "j-0"] = group_pod(0, 20)
    store.tables[POD].replace(None, [], "10")

    async def main() -> None:
        observer = Observer(store, client, FakeListeners())  # type: ignore[arg-type]
        observer.begin()
        assert (await observer.observe(job(status={}))).pods == ()
        observed = await observer.observe(job(status=RUNNING))
        assert [each["metadata"]["name"] for each in observed.pods] == ["j-0"]

    asyncio.run(main())


ENDED = {"conditions": [{"type": "Complete", "status": "True"}]}


@pytest.mark.parametrize(
    ("fields", "evicted", "reads"),
    [
        ({}, "False", True),
        ({}, "True", False),
        ({"status": ENDED}, "False", False),
        ({"spec": {"suspend": True}}, "False", False),
    ],
)
def test_flavors_are_read_before_a_start_alone(fields: Any, evicted: str, reads: bool) -> None:
    """Elsewhere a flavor that was deleted would keep the job from giving its quota back."""
    client = FakeClient()
    client.objects["distributedtrainingjobs", "j"] = job() | fields
    admission = {"podSetAssignments": [{"flavors": {"cpu": "deleted"}}]}
    admitted = [{"type": "Admitted", "status": "True"}, {"type": "Evicted", "status": evicted}]
    workload = {"metadata": {"name": "j"}, "status": {"conditions": admitted, "admission": admission}}

    async def test(observer: Observer) -> None:
        observer._store.workload = lambda key: workload  # type: ignore[method-assign]
        assert (await look(observer)).flavors == {}, "the planner names what is missing"
        assert [call[1:] for call in client.calls] == [("resourceflavors", "deleted")] * reads

    observing(client, test)


class Hiding(FakeCache):
    """Shows no Service and no StatefulSet, as if they lacked the operator's label."""

    hides = True

    def child(self, resource: Resource, key: Key) -> Any:
        return None if self.hides else super().child(resource, key)


def hiding(client: FakeClient, test: Callable[[Observer, Hiding], Awaitable[None]]) -> None:
    async def main() -> None:
        cache = Hiding(client)
        await test(Observer(cache, client, FakeListeners()), cache)  # type: ignore[arg-type]

    asyncio.run(main())


def test_foreign_object_of_a_childs_name_is_read_until_it_is_gone_or_cached() -> None:
    client = client_with()
    foreign = {"metadata": {"name": "j", "uid": "web"}}
    read = ("get", "services", "j")

    async def test(observer: Observer, cache: Hiding) -> None:
        client.objects["services", "j"] = foreign
        observer.add_unlabelled(SERVICE, KEY)
        for number in (1, 2):
            assert (await look(observer)).service == foreign
            assert client.calls == [read] * number
        del client.objects["services", "j"]
        assert (await look(observer)).service is None
        await look(observer)
        assert client.calls == [read] * 3
        observer.add_unlabelled(SERVICE, KEY)
        observer.keep_only([])
        client.objects["services", "j"] = foreign
        observer.add_unlabelled(SERVICE, KEY)
        cache.hides = False
        assert (await look(observer)).service is foreign
        assert client.calls == [read] * 3, "the cache has it"

    hiding(client, test)


@pytest.mark.parametrize(
    ("spec", "status", "more", "read"),
    [
        ({}, None, {}, True),
        ({"suspend": True}, None, {}, False),
        ({}, {"conditions": [{"type": names.COMPLETE, "status": "True"}]}, {}, False),
        ({}, None, {"deletionTimestamp": "t"}, False),
        ({}, None, {"ownerReferences": []}, False),
    ],
    ids=["runs", "suspended", "ended", "its pods terminate", "its pods were orphaned"],
)
def test_own_stateful_set_without_the_label_is_read_while_its_pods_run(
    spec: Any, status: Any, more: Any, read: bool
) -> None:
    owned = pod()
    owned["metadata"] |= {"ownerReferences": [{"kind": "StatefulSet", "name": "j", "uid": "set"}]} | more
    client = client_with(owned)
    client.objects["distributedtrainingjobs", "j"] = job(status) | {"spec": spec}

    async def test(observer: Observer, cache: Hiding) -> None:
        assert (await look(observer)).stateful_set == (SET if read else None)
        assert bool(client.calls) == read

    hiding(client, test)


@pytest.mark.parametrize(
    ("pods", "asked"),
    [
        ((), ()),
        ((pod(1),), (pod(1),)),
        ((pod(0, ip=None),), ()),
        ((pod(0, state="waiting"), pod(1)), (pod(1),)),
        ((pod(0, state="terminated"),), ()),
        ((pod(10), pod(9), pod(0)), (pod(0), pod(9), pod(10))),
    ],
)
def test_agents_may_be_asked_once_their_pods_have_an_address_and_run(pods: Any, asked: Any) -> None:
    assert reachable_pods(job(), SET, pods) == asked


def test_foreign_pod_with_our_labels_is_never_asked() -> None:
    stranger = pod(0)
    stranger["metadata"]["ownerReferences"] = []
    assert reachable_pods(job(), SET, (stranger,)) == ()
    assert reachable_pods(job(), {"metadata": {"uid": "set"}}, (pod(0),)) == ()
    assert reachable_pods(job(), None, (pod(0),)) == ()


def test_report_of_the_agents_is_observed_without_a_wait() -> None:
    heard = Heard(page={"uid": "u1"}, silent_seconds=0.0, is_known=True)

    async def test(observer: Observer) -> None:
        observed = await look(observer)
        assert (observed.agent, observed.agent_silent_seconds, observed.agent_asked) == ({"uid": "u1"}, 0.0, True)

    observing(client_with(pod()), test, FakeListeners(heard))


def test_silence_of_the_agents_is_observed_with_its_cause() -> None:
    heard = Heard(silent_seconds=61.0, cause="refused")

    async def test(observer: Observer) -> None:
        observed = await look(observer)
        assert (observed.agent, observed.agent_silent_seconds) == (None, 61.0)
        assert (observed.agent_silence, observed.agent_asked) == ("refused", False)

    observing(client_with(pod()), test, FakeListeners(heard))


@pytest.mark.parametrize("metadata", [None, {"deletionTimestamp": "2026-01-01T00:00:00Z"}])
def test_listener_ends_with_its_job(metadata: Any) -> None:
    client, listeners = client_with(pod()), FakeListeners()
    if metadata is None:
        del client.objects["distributedtrainingjobs", "j"]
    else:
        client.objects["distributedtrainingjobs", "j"] = job(**metadata)

    async def test(observer: Observer) -> None:
        observer.get_job(KEY)
        assert listeners.ended == [KEY]
        observer.keep_only([("ns", "k")])
        assert listeners.kept == [("ns", "k")]

    observing(client, test, listeners)
