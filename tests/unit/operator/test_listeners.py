"""Listeners: what they report at once, whom they follow, when they end, and that no silent agent delays another."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import tracemalloc
from typing import Any

import pytest

from dtj_contract.operator_message import decode
from dtj_operator.following import listeners
from dtj_operator.following.listener import Heard
from dtj_operator.workqueue import Priority
from tests.unit.operator.fakes import job
from tests.unit.operator.listening import Network, listening, page
from tests.unit.operator.test_observer import pod

A, B, C = "127.9.0.1", "127.9.0.2", "127.9.0.3"
KEY = ("ns", "j")


def test_first_observation_waits_for_nobody_and_the_answer_is_enqueued() -> None:
    async def test(network: Network) -> None:
        network.add(A, page())
        assert network.observe(A) == Heard()
        await network.until("the key to be queued", lambda: network.enqueued[KEY])
        heard = network.observe(A)
        assert (heard.page["attempt"], heard.is_known, heard.silent_seconds) == (1, True, 0.0)

    listening(test)


def test_change_is_enqueued_at_once_on_the_same_connection() -> None:
    async def test(network: Network) -> None:
        agent = network.add(A, page())
        await network.until_heard(A)
        for attempt in range(2, 6):
            await network.until("the listener to wait", lambda: agent.open)
            before = network.enqueued[KEY]
            agent.show(attempt=attempt)
            await network.until("the change", lambda before=before: network.enqueued[KEY] > before)
            assert network.observe(A).page["attempt"] == attempt
            assert network.priority == Priority.CHANGED
        assert len(agent.connections) == 1

    listening(test, wait_seconds=3600.0)


def test_progress_is_enqueued_when_the_wait_is_over_and_nothing_without_progress() -> None:
    async def test(network: Network) -> None:
        agent = network.add(A, page())
        await network.until_heard(A)
        before = network.enqueued[KEY]
        await network.until("three answers", lambda: len(agent.requests) >= 4)
        assert network.enqueued[KEY] == before
        agent.progress(7)
        await network.until("the progress", lambda: network.enqueued[KEY] > before)
        assert network.observe(A).page["progress"]["step"] == 7
        assert network.priority == Priority.AGAIN, "it gives way to what has changed"

    listening(test, wait_seconds=1.0)


def test_more_productive_seconds_are_kept_for_the_next_plan_and_enqueue_nothing() -> None:
    async def test(network: Network) -> None:
        agent = network.add(A, page(progress={"step": 7}, productiveSeconds=0.0))
        await network.until_heard(A)
        before, answers = network.enqueued[KEY], len(agent.requests)
        while len(agent.requests) < answers + 4:
            agent.page = {**agent.page, "productiveSeconds": agent.page["productiveSeconds"] + 1}
            await asyncio.sleep(0.01)
        assert network.enqueued[KEY] == before
        assert network.observe(A).page["productiveSeconds"] > 0
        agent.page = {**agent.page, "productiveSeconds": 99.0, "progress": {"step": 8}}
        await network.until("the step", lambda: network.enqueued[KEY] > before)
        heard = network.observe(A).page
        assert (heard["progress"]["step"], heard["productiveSeconds"]) == (8, 99.0)

    listening(test, wait_seconds=0.2)


def test_same_page_of_the_next_agent_is_enqueued() -> None:
    async def test(network: Network) -> None:
        agent = network.add(A, page())
        await network.until_heard(A)
        await network.until("the listener to wait", lambda: agent.open)
        restarted = pod(0, A)
        restarted["status"]["containerStatuses"][1]["state"]["running"]["startedAt"] = "2026-01-01T00:00:00Z"
        before = network.enqueued[KEY]
        heard = network.observe(pods=[restarted])
        assert (heard.page, heard.is_known) == (None, True)
        await network.until("the page", lambda: network.enqueued[KEY] > before)
        assert network.observe(pods=[restarted]).page is not None
        assert network.priority == Priority.CHANGED

    listening(test, wait_seconds=3600.0)


def test_agent_of_an_older_version_is_polled() -> None:
    async def test(network: Network) -> None:
        agent = network.add(A, page(), waits=False)
        await network.until_heard(A)
        agent.page["attempt"] = 2
        await network.until("the change", lambda: network.observe(A).page["attempt"] == 2)
        assert len(agent.connections) == len(agent.requests) > 1

    listening(test, poll_seconds=0.05)


def test_changed_spec_is_handed_over_at_once() -> None:
    async def test(network: Network) -> None:
        agent = network.add(A, page())
        await network.until_heard(A)
        await network.until("the listener to wait", lambda: agent.open)
        raised = job(generation=4)
        raised["spec"]["restart"] = {"maxRestarts": 50}
        evicted = pod(1, "10.0.0.9")
        evicted["status"] |= {"phase": "Failed", "reason": "Evicted"}
        network.observe(of=raised, pods=[pod(0, A), evicted])
        await network.until("the message", lambda: len(agent.messages) >= 3)
        message = decode(agent.messages[-1])
        assert message.budget is not None
        assert (message.budget.generation, message.budget.max_restarts) == (4, 50)
        assert [(lost.pod, lost.reason, lost.own_fault) for lost in message.lost_pods] == [("j-1", "PodEvicted", True)]
        requests = len(agent.requests)
        for _ in range(5):
            network.observe(of=raised, pods=[pod(0, A), evicted])
            await asyncio.sleep(0)
        assert len(agent.requests) == requests, "the same message ends no wait"

    listening(test, wait_seconds=3600.0)


@pytest.mark.parametrize("change", ["another pod", "a restarted container", "another address"])
def test_report_of_an_earlier_pod_is_dropped_at_once_and_never_comes_back(change: str) -> None:
    async def test(network: Network) -> None:
        first = network.add(A, page(attempt=7))
        network.add(B, page(attempt=1))
        await network.until_heard(A)
        await network.until("the listener to wait", lambda: first.open)
        other, address = pod(0, A), A
        if change == "another pod":
            other["metadata"]["uid"] = "p9"
        elif change == "another address":
            other["status"]["podIP"] = address = B
        else:
            other["status"]["containerStatuses"][1]["state"]["running"]["startedAt"] = "2026-01-01T00:00:00Z"
        if address == A:
            network.add(A, page(attempt=1))
        first.show(attempt=8)  # on its way
        assert network.observe(pods=[other]).page is None
        await network.until("the new agent's page", lambda: network.observe(pods=[other]).page)
        assert network.observe(pods=[other]).page["attempt"] == 1

    listening(test, wait_seconds=3600.0)


def test_leader_is_followed_as_it_moves() -> None:
    async def test(network: Network) -> None:
        agents = [network.add(ip, page(ordinal=n, leader=2)) for n, ip in enumerate((A, B, C))]
        assert (await network.until_heard(A, B, C))["ordinal"] == 2
        await network.until("the listener to wait at the leader", lambda: agents[2].open)
        for n, agent in enumerate(agents):
            agent.show(leader=page(leader=1)["leader"] | {"epoch": 2}, ordinal=n)
        await network.until("the next leader's page", lambda: network.observe(A, B, C).page["ordinal"] == 1)
        await network.until("the listener to wait there", lambda: agents[1].open and not agents[2].open)

    listening(test, wait_seconds=3600.0)


def test_follower_is_used_while_the_leader_is_silent() -> None:
    async def test(network: Network) -> None:
        network.add(A, None)
        network.add(B, page(ordinal=1, leader=0))
        assert (await network.until_heard(A, B))["ordinal"] == 1
        assert network.observe(A, B).silent_seconds == 0.0

    listening(test, seconds=0.5, wait_seconds=1.0)


def test_silence_is_enqueued_with_its_cause_and_ends_with_an_answer() -> None:
    async def test(network: Network) -> None:
        agent = network.add(A, page())
        await network.until_heard(A)
        agent.page = agent.page | {"uid": "another"}
        agent.changed.set()
        before = network.enqueued[KEY]
        await network.until("the silence", lambda: network.enqueued[KEY] > before)
        await network.until("its cause", lambda: network.observe(A).cause == "invalid")
        assert network.listeners.count(silent=True) == 1
        assert network.observe(A).silent_seconds > 0
        agent.page = agent.page | {"uid": "u1"}
        await network.until_heard(A)
        assert (network.listeners.count(silent=True), network.listeners.count(silent=False)) == (0, 1)

    listening(test, wait_seconds=0.2)


ENDS: dict[str, Any] = {
    "the job is gone": lambda network: network.listeners.end(KEY),
    "a resync does not list it": lambda network: network.listeners.keep_only([("ns", "k")]),
    "the job has finished": lambda network: network.observe(
        A, of=job({"conditions": [{"type": "Complete", "status": "True"}]})
    ),
    "no pod runs": lambda network: network.observe(),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_listener_ends(end: Any) -> None:
    async def test(network: Network) -> None:
        agent = network.add(A, page())
        await network.until_heard(A)
        await network.until("the listener to wait", lambda: agent.open)
        end(network)
        await network.until("the request to end", lambda: not agent.open)
        assert network.listeners.count(silent=False) == 0
        assert network.observe(A).page is None, "a report of the past is forgotten"

    listening(test, wait_seconds=3600.0)


def test_job_of_the_same_name_has_a_listener_of_its_own() -> None:
    async def test(network: Network) -> None:
        agent = network.add(A, page())
        await network.until_heard(A)
        agent.show(uid="u2", attempt=5)
        other = job(uid="u2")
        assert network.observe(A, of=other).page is None
        assert (await network.until_heard(A, of=other))["attempt"] == 5

    listening(test, wait_seconds=3600.0)


def listening_tasks() -> list[str]:
    return [name for task in asyncio.all_tasks() if (name := task.get_name()).startswith("agents of")]


def test_stop_ends_all_listeners_and_a_new_start_has_forgotten_them() -> None:
    async def test(network: Network) -> None:
        for n in range(100):
            network.add(f"127.9.1.{n}", None if n % 2 else page(name=f"k{n}"))
            network.observe(f"127.9.1.{n}", name=f"k{n}")
        await network.until("some to be heard", lambda: network.enqueued[("ns", "k0")])
        began = time.monotonic()
        await network.listeners.stop()
        took = time.monotonic() - began
        assert took < 10, "a second, on a machine that is not loaded"
        assert network.observe("127.9.1.0", name="k0").page is not None, "for a reconcile in flight"
        assert listening_tasks() == []
        await network.listeners.start()
        assert network.observe("127.9.1.0", name="k0") == Heard()
        await network.until_heard("127.9.1.0", name="k0")

    listening(test, wait_seconds=3600.0)


def test_listeners_that_have_not_started_ask_nobody() -> None:
    async def test(network: Network) -> None:
        await network.listeners.stop()
        agent = network.add(A, page())
        assert network.observe(A) == Heard()
        assert listening_tasks() == []
        assert agent.requests == []

    listening(test)


def test_new_job_is_heard_beside_500_silent_ones() -> None:
    """The silent agents accept connections and never answer; at most so many as there are slots are asked at a time."""

    async def test(network: Network) -> None:
        for n in range(500):
            network.add(f"127.10.{n // 250}.{n % 250 + 1}", None)
            network.observe(f"127.10.{n // 250}.{n % 250 + 1}", name=f"silent{n}")
        await network.until("each to be asked", lambda: all(agent.requests for agent in network.agents.values()))
        await network.until("each to be silent", lambda: network.listeners.count(silent=True) == 500)
        network.add(A, page())
        began = time.monotonic()
        assert network.observe(A) == Heard()
        assert time.monotonic() - began < 5, "an observation waits for nobody"
        await network.until_heard(A)
        print(f"heard after {time.monotonic() - began:.2f} s; at most {network.busiest} silent agents at a time")
        assert network.busiest <= listeners.FRESH_SEARCHES + listeners.SILENT_SEARCHES

    listening(test, seconds=1.0)


def test_agent_that_always_has_something_new_is_slowed_down() -> None:
    async def test(network: Network) -> None:
        agent = network.add(A, page())
        network.observe(A)
        began = time.monotonic()
        while time.monotonic() - began < 2.0:
            agent.show(attempt=len(agent.requests) + 2)
            await asyncio.sleep(0.001)
        taken = time.monotonic() - began
        assert len(agent.requests) <= 2 * (12 + taken), "a burst of ten, and one a second"

    listening(test)


def test_listener_that_a_bug_has_ended_is_replaced(caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    async def test(network: Network) -> None:
        network.add(A, page())
        with monkeypatch.context() as patched:
            patched.setattr("dtj_operator.following.listener.slim", lambda found: found["no such field"])
            network.observe(A)
            await network.until("the bug", lambda: "bug in the listener of ns/j" in caplog.text)
        await network.until_heard(A)

    with caplog.at_level(logging.ERROR):
        listening(test)


def test_listener_of_a_job_costs_less_than_100_kib() -> None:
    """Both ends of each connection are in this process, so the figure is an upper bound."""
    failure = {"attempt": 1, "rank": 0, "ordinal": 0, "pod": "j-0", "reason": "WorkerFailed", "logTail": "line\n" * 400}

    async def test(network: Network) -> None:
        def add(first: int, count: int) -> None:
            for n in range(first, first + count):
                network.add(f"127.11.0.{n + 1}", page(name=f"k{n}", failures=[failure] * 5))

        def all_wait() -> bool:
            return all(agent.open for agent in network.agents.values())

        add(0, 20)  # fills the caches
        for n in range(20):
            network.observe(f"127.11.0.{n + 1}", name=f"k{n}")
        await network.until("the first to wait", all_wait)
        add(20, 200)
        tracemalloc.start()
        try:
            for n in range(20, 220):
                network.observe(f"127.11.0.{n + 1}", name=f"k{n}")
            await network.until("all to wait", all_wait)
            used, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        print(f"{used / 200 / 1024:.1f} KiB a job, both ends")
        assert used / 200 < 100 * 1024

    listening(test, wait_seconds=3600.0, seconds=30.0)


def test_page_of_a_large_group_is_stored_small() -> None:
    async def test(network: Network) -> None:
        members = [{"ordinal": n, "pod": f"j-{n}", "address": f"10.0.0.{n}", "state": "running"} for n in range(1024)]
        network.add(A, page(members=members))
        found = await network.until_heard(A)
        stored = network.listeners._following[KEY].listener._page
        assert stored is not None
        print(f"{len(json.dumps(found)) / 1024:.0f} KiB as JSON, {len(stored) / 1024:.0f} KiB stored")
        assert len(stored) < 16 * 1024

    listening(test)
