"""The cache: what is woken by a change, when, and what a reflector does when its watch breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any
from unittest.mock import Mock

import pytest

from dtj_contract import names
from dtj_core.plan.model import Object
from dtj_operator import errors
from dtj_operator.kube.cache.cache import Cache, window
from dtj_operator.kube.cache.store import Table
from dtj_operator.kube.resources import JOB, POD, Resource
from dtj_operator.metrics import Metrics
from dtj_operator.workqueue import Priority, WorkQueue
from tests.lib.virtual_time import run

KEY = ("ns", "j")


def stored(name: str, version: int, **fields: Any) -> Object:
    metadata = {"namespace": "ns", "name": name, "uid": name, "resourceVersion": str(version)}
    return {"metadata": metadata | {"labels": {names.LABEL_JOB: "j"}}, "spec": {}} | fields


class Server:
    """Serves lists and watches from a script: each watch shows the next of `watches` of its kind."""

    def __init__(self) -> None:
        self.listed: dict[str, list[Any]] = {}
        self.watches: dict[str, list[list[Any]]] = {}
        self.calls: list[tuple[str, str, str]] = []

    async def pages(
        self, resource: Resource, namespace: str | None, selector: str | None = None, *, limit: int
    ) -> AsyncIterator[tuple[list[Object], str]]:
        self.calls.append(("list", resource.plural, ""))
        for step in self.listed.get(resource.plural) or [[]]:
            await asyncio.sleep(0.01)
            if isinstance(step, Exception):
                self.listed[resource.plural].remove(step)
                raise step
            yield step, "100"

    async def watch(
        self, resource: Resource, namespace: str | None, selector: str | None, version: str, **_: float
    ) -> AsyncIterator[list[Object]]:
        self.calls.append(("watch", resource.plural, version))
        script = self.watches.get(resource.plural)
        for step in script.pop(0) if script else ():
            await asyncio.sleep(2.0)
            if isinstance(step, Exception):
                raise step
            yield [{"type": kind, "object": found} for kind, found in step]
        await asyncio.sleep(1e4)

    def of(self, plural: str) -> list[str]:
        return [
            " ".join(call).replace(plural, "").replace("  ", " ").strip() for call in self.calls if call[1] == plural
        ]


def caching(server: Server, test: Callable[[Cache, list[Any]], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        woken: list[Any] = []
        cache = Cache(server, (), Metrics("1"), lambda key, seconds: woken.append((key, seconds)))  # type: ignore[arg-type]
        await cache.start()
        try:
            await test(cache, woken)
        finally:
            await cache.stop()

    run(main())


def test_nothing_is_synced_or_woken_before_every_kind_is_listed_completely() -> None:
    server = Server()
    server.listed["pods"] = [[stored("j-0", 1)], errors.Transient("busy", status=503), [stored("j-1", 2)]]
    server.listed[names.PLURAL] = [[stored("j", 3)]]

    async def test(cache: Cache, woken: list[Any]) -> None:
        await asyncio.sleep(0.2)
        assert (cache.is_synced, woken, len(cache.pods(KEY))) == (False, [], 0)
        await cache.synced()
        assert cache.is_synced
        assert [pod["metadata"]["name"] for pod in cache.pods(KEY)] == ["j-0", "j-1"]

    caching(server, test)


@pytest.mark.parametrize(
    ("broken", "calls"),
    [
        (errors.Transient("cut"), ["list", "watch 100", "watch 101"]),
        (errors.Gone("too old resource version", status=410), ["list", "watch 100", "list", "watch 100"]),
        (errors.NotAuthenticated("Unauthorized", status=401), ["list", "watch 100", "watch 101"]),
    ],
)
def test_broken_watch_goes_on_from_its_last_version_and_lists_only_after_a_gap(
    broken: Exception, calls: list[str]
) -> None:
    server = Server()
    server.watches["pods"] = [[[("ADDED", stored("j-0", 101))], broken], [[("DELETED", stored("j-0", 102))]]]

    async def test(cache: Cache, woken: list[Any]) -> None:
        await cache.synced()
        await asyncio.sleep(3.0)
        assert len(cache.pods(KEY)) == 1
        await asyncio.sleep(30.0)
        assert server.of("pods") == calls
        assert len(cache.pods(KEY)) == 0
        assert [key for key, _ in woken] == [KEY] * 2

    caching(server, test)


def test_gap_leaves_no_ghost() -> None:
    server = Server()
    server.listed["pods"] = [[stored("j-0", 1), stored("j-1", 2)]]
    server.watches["pods"] = [[errors.Gone("too old", status=410)]]

    async def test(cache: Cache, woken: list[Any]) -> None:
        await cache.synced()
        server.listed["pods"] = [[stored("j-1", 2)]]
        await asyncio.sleep(10.0)
        assert [pod["metadata"]["name"] for pod in cache.pods(KEY)] == ["j-1"]
        assert woken[-1:] == [(KEY, window(1))]

    caching(server, test)


def test_deleted_crd_ends_the_cache() -> None:
    server = Server()
    server.watches[names.PLURAL] = [[errors.ObjectNotFound("the server could not find it", status=404)]]

    async def main() -> None:
        cache = Cache(server, (), Metrics("1"), lambda key, seconds: None)  # type: ignore[arg-type]
        with pytest.raises(errors.NotServed, match="CRD was deleted"):
            await cache.run()

    run(main())


def test_cache_goes_on_after_a_stop() -> None:
    server = Server()
    server.listed["pods"] = [[stored("j-0", 1)]]

    async def test(cache: Cache, woken: list[Any]) -> None:
        await cache.synced()
        await cache.stop()
        assert cache.pods(KEY)
        await cache.start()
        await asyncio.sleep(1.0)
        assert server.of("pods") == ["list", "watch 100", "watch 100"]

    caching(server, test)


def test_change_of_the_job_wakes_it_at_once_and_changes_of_its_pods_are_gathered() -> None:
    server = Server()
    changes = [("MODIFIED", stored("j-0", 100 + number, status={"phase": str(number)})) for number in range(20)]
    server.watches["pods"] = [[[change] for change in changes]]
    server.watches[names.PLURAL] = [[[("ADDED", stored("j", 101))]]]

    async def test(cache: Cache, woken: list[Any]) -> None:
        await cache.synced()
        await asyncio.sleep(60.0)
        assert woken.count((KEY, 0.0)) == 1
        assert woken.count((KEY, window(1))) == 20

    caching(server, test)


@pytest.mark.parametrize(("pods", "seconds"), [(0, 0.1), (2, 0.102), (100, 0.2), (1024, 1.0)])
def test_window_grows_with_the_group(pods: int, seconds: float) -> None:
    assert window(pods) == pytest.approx(seconds)


def test_hundred_changes_of_pods_within_a_window_are_one_reconcile() -> None:
    async def main() -> None:
        queue: WorkQueue[Any] = WorkQueue(Mock())
        for _ in range(100):
            queue.add_after(KEY, window(2), Priority.CHANGED)
            await asyncio.sleep(0.001)
        assert await queue.get() == KEY
        queue.done(KEY)
        assert (len(queue), queue._timers) == (0, {})

    run(main())


def cache_of_a_job(woken: list[Any]) -> tuple[Cache, Table]:
    """Returns a cache that has job j, and its table. Adds the jobs that are woken to `woken`."""
    cache = Cache(Mock(), (), Mock(), lambda key, seconds: woken.append(key))
    for each in cache._reflectors:
        each.listed.set()
    jobs = cache.tables[JOB]
    jobs.replace(None, [stored("j", 100)], "100")
    return cache, jobs


def test_own_status_write_wakes_nobody_and_a_foreign_one_does() -> None:
    async def main() -> None:
        woken: list[Any] = []
        cache, jobs = cache_of_a_job(woken)

        def shown(version: int, phase: str) -> None:
            cache.changed(jobs, jobs.event(None, "MODIFIED", stored("j", version, status={"phase": phase})))

        with cache.status_write(KEY) as answered:  # the event comes before the answer
            shown(101, "Running")
            answered(stored("j", 101, status={"phase": "Running"}))
        with cache.status_write(KEY) as answered:  # and after it
            answered(stored("j", 102, status={"phase": "Failed"}))
        shown(102, "Failed")
        assert woken == []
        with cache.status_write(KEY) as answered:  # somebody else writes right after us
            shown(104, "Complete")
            answered(stored("j", 103, status={"phase": "Running"}))
        assert woken == [KEY]
        shown(105, "Running")
        assert woken == [KEY] * 2

    run(main())


def test_change_that_the_watch_shows_during_a_status_write_is_not_lost() -> None:
    """Its own write may have failed because of it, and the retry is up to five minutes away."""
    woken: list[Any] = []
    cache, jobs = cache_of_a_job(woken)

    def write(error: Exception, *shown: Object) -> None:
        with cache.status_write(KEY):
            for each in shown:
                cache.changed(jobs, jobs.event(None, "MODIFIED", each))
            raise error

    with pytest.raises(errors.Transient):
        write(errors.Transient("busy", status=503))
    assert woken == [], "nothing has changed"
    with pytest.raises(errors.Conflict):
        write(errors.Conflict("modified", status=409), stored("j", 101, spec={"suspend": True}))
    assert woken == [KEY]
    with cache.status_write(KEY) as answered:
        cache.changed(jobs, jobs.event(None, "DELETED", stored("j", 103)))
        answered(stored("j", 102, status={"phase": "Running"}))
    assert woken == [KEY] * 2


def test_pods_without_a_change_that_is_read_wake_nobody() -> None:
    cache = Cache(Mock(), (), Mock(), lambda key, seconds: pytest.fail("woken"))
    pods = cache.tables[POD]
    condition = {"type": "Ready", "status": "False", "lastProbeTime": "1"}
    pods.event(None, "ADDED", stored("j-0", 1, status={"conditions": [condition]}))
    again = stored("j-0", 2, status={"conditions": [condition | {"lastProbeTime": "2"}], "hostIP": "h"})
    assert pods.event(None, "MODIFIED", again) == set()


def test_runtime_wakes_the_jobs_that_wait_for_it_and_no_others() -> None:
    """A job that has taken its runtime is none of them: a change of the runtime must cost it nothing."""
    server = Server()
    refers = {"spec": {"runtimeRef": {"name": "gpu"}}}
    server.listed[names.PLURAL] = [
        [
            stored("waits", 1, **refers),
            stored("has", 2, **refers, status={"runtime": {"name": "gpu"}}),
            stored("other", 3, spec={"runtimeRef": {"name": "cpu"}}),
            stored("none", 4),
        ]
    ]
    runtime = {"metadata": {"name": "gpu", "uid": "r", "resourceVersion": "101"}, "spec": {"image": "a"}}
    server.watches[names.RUNTIME_PLURAL] = [[[("ADDED", runtime)]]]

    async def test(cache: Cache, woken: list[Any]) -> None:
        await cache.synced()
        await asyncio.sleep(3.0)
        assert [key for key, _ in woken] == [("ns", "waits")]
        found = cache.runtime({"spec": {"runtimeRef": {"name": "gpu"}}})
        assert found is not None
        assert found["spec"] == {"image": "a"}
        assert cache.runtime({"spec": {}}) is None

    caching(server, test)


@pytest.mark.parametrize(
    "missing", [errors.ObjectNotFound("no such path", status=404), errors.Forbidden("cannot list", status=403)]
)
def test_runtimes_that_are_not_served_or_not_allowed_stop_no_operator(missing: Exception) -> None:
    server = Server()
    server.listed[names.RUNTIME_PLURAL] = [missing, []]

    async def test(cache: Cache, woken: list[Any]) -> None:
        await cache.synced()
        assert server.of(names.RUNTIME_PLURAL) == ["list"]
        assert not cache.serves_runtimes()
        await asyncio.sleep(3.0)
        assert cache.serves_runtimes()
        assert server.of(names.RUNTIME_PLURAL) == ["list", "list", "watch 100"], "they are found once they are there"

    caching(server, test)


def test_runtimes_are_read_in_the_whole_cluster_whatever_namespaces_are_served() -> None:
    cache = Cache(Mock(), ("a", "b"), Metrics("1"), lambda key, seconds: None)
    scopes = [(each._kind.resource.plural, each._scope) for each in cache._reflectors]
    assert [scope for plural, scope in scopes if plural == names.RUNTIME_PLURAL] == [None]
    assert [scope for plural, scope in scopes if plural == names.PLURAL] == ["a", "b"]
