"""Listeners and real agents, each a process with an address of its own: failures, lost leaders, frozen agents."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from dtj_contract import names
from dtj_core.plan.agent_keys import agent_key
from dtj_operator.agent_client import AgentClient
from dtj_operator.following.listeners import AgentListeners
from tests.lib.waiting import wait_until_async
from tests.unit.agent.harness import Group
from tests.unit.agent.test_replaced import common_port
from tests.unit.operator.fakes import job
from tests.unit.operator.test_observer import SET, pod, settings

PATIENCE = 90.0


class Pods(Group):
    """A group whose agents listen on one port at addresses of their own, as pods do."""

    def __init__(self, folder: Path, replicas: int) -> None:
        super().__init__(folder, replicas)
        worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        self.addresses = [f"127.{20 + worker}.0.{ordinal + 1}" for ordinal in range(replicas)]
        self.port = common_port(self.addresses)
        self.peers = ",".join(f"{address}:{self.port}" for address in self.addresses)
        (folder / "key").write_text(agent_key("u1", settings(1)) + "\n")

    def start(self, *ordinals: int, **environ: str) -> None:
        for ordinal in ordinals or range(self.replicas):
            address = self.addresses[ordinal]
            own = {
                names.ENV_LISTEN: f"{address}:{self.port}",
                names.ENV_POD_IP: address,
                names.ENV_JOB_UID: "u1",
                names.ENV_POD_NAME: f"j-{ordinal}",
            }
            super().start(ordinal, **{**own, **environ})


class Watched:
    """The pods of a job, and what a listener reports of them."""

    def __init__(self, group: Pods, listeners: AgentListeners) -> None:
        self.group = group
        self.listeners = listeners
        self.queued = asyncio.Event()
        self.lives = [0] * group.replicas

    def heard(self) -> Any:
        pods = []
        for ordinal, address in enumerate(self.group.addresses):
            pods.append(pod(ordinal, address))
            running = pods[-1]["status"]["containerStatuses"][1]["state"]["running"]
            running["startedAt"] = f"2026-01-01T00:00:{self.lives[ordinal]:02}Z"
        return self.listeners.observe(job(), SET, pods)

    def page(self) -> Any:
        return self.heard().page or {}

    async def until(self, what: str, true: Callable[[], object]) -> None:
        """Waits for what the operator would know after a reconcile that the listener has asked for."""
        async with asyncio.timeout(PATIENCE):
            while not true():
                self.queued.clear()
                if not true():
                    await self.queued.wait()


def watching(folder: Path, replicas: int, test: Callable[[Watched], Awaitable[None]], wait_seconds: float) -> None:
    async def main(group: Pods) -> None:
        client = AgentClient(settings(group.port), seconds=2.0)
        queued: list[Watched] = []
        listeners = AgentListeners(client, lambda *_: queued[0].queued.set(), wait_seconds=wait_seconds)
        queued.append(Watched(group, listeners))
        await listeners.start()
        try:
            await test(queued[0])
        finally:
            await listeners.stop()
            await client.close()

    group = Pods(folder / "group", replicas)
    try:
        group.start()
        asyncio.run(main(group))
    finally:
        for agent in group.everyone:
            if agent.poll() is None:
                agent.send_signal(signal.SIGCONT)
        group.close()


def leads(page: Any) -> bool:
    return bool(page.get("leader")) and page["ordinal"] == page["leader"]["ordinal"]


def is_running(page: Any, attempt: int) -> bool:
    return page.get("phase") == "Running" and page["attempt"] >= attempt


def test_failure_and_restart_are_heard_before_the_wait_is_over(tmp_path: Path) -> None:
    async def test(watched: Watched) -> None:
        await watched.until("the first attempt", lambda: is_running(watched.page(), 1))
        watched.group.tell("exit-1", "7")
        await watched.until("the next attempt", lambda: is_running(watched.page(), 2))
        await watched.until("the failure", lambda: watched.page()["failures"])
        assert watched.page()["failures"][-1]["exitCode"] == 7

    watching(tmp_path, 2, test, wait_seconds=40.0)


def test_next_leader_is_found_when_the_leader_is_killed(tmp_path: Path) -> None:
    async def test(watched: Watched) -> None:
        await watched.until("the first attempt", lambda: is_running(watched.page(), 1))
        first = watched.page()["leader"]["ordinal"]
        watched.group.agents[first].kill()
        watched.group.agents[first].wait(PATIENCE)
        await watched.until(
            "another leader", lambda: (watched.page().get("leader") or {}).get("ordinal") not in (first, None)
        )
        watched.lives[first] += 1
        watched.group.start(first)
        await watched.until(
            "the leader to be listened to", lambda: leads(watched.page()) and is_running(watched.page(), 2)
        )

    watching(tmp_path, 3, test, wait_seconds=40.0)


def test_frozen_agent_is_silent_and_is_heard_again_when_it_thaws(tmp_path: Path) -> None:
    async def test(watched: Watched) -> None:
        await watched.until("the first attempt", lambda: is_running(watched.page(), 1))
        os.kill(watched.group.agents[0].pid, signal.SIGSTOP)
        await watched.until("the silence", lambda: watched.heard().cause == "unreachable")
        assert watched.heard().silent_seconds >= 1.0, "counted from the last answer"
        os.kill(watched.group.agents[0].pid, signal.SIGCONT)
        await watched.until("an answer", lambda: watched.page())
        assert watched.heard().silent_seconds == 0.0

    watching(tmp_path, 1, test, wait_seconds=1.0)


def test_outcome_is_heard(tmp_path: Path) -> None:
    async def test(watched: Watched) -> None:
        await watched.until("the first attempt", lambda: is_running(watched.page(), 1))
        watched.group.tell("finish")
        # The exit of the agents follows at once, so either is seen first.
        await wait_until_async(
            "the end", lambda: watched.page().get("phase") == "Finished" or not watched.page(), timeout=PATIENCE
        )

    watching(tmp_path, 1, test, wait_seconds=40.0)
