"""The listeners of all jobs: one for each job with an agent to listen to."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dtj_contract.operator_message import encode
from dtj_core.plan.conditions import is_finished
from dtj_core.plan.leader_search import reachable_pods
from dtj_core.plan.model import Object
from dtj_core.plan.operator_message import operator_message
from dtj_operator import logs
from dtj_operator.agent_client import AgentClient
from dtj_operator.following.descriptors import make_room
from dtj_operator.following.listener import POLL_SECONDS, WAIT_SECONDS, Heard, Listener, Slots, Wanted
from dtj_operator.following.retry import Uniform
from dtj_operator.kube.resources import job_key
from dtj_operator.workqueue import Priority

Key = tuple[str, str]

FRESH_SEARCHES = 64
"""Searches at a time for agents that have answered before, or have not been asked yet."""
SILENT_SEARCHES = 16
"""Searches at a time for agents that did not answer the last one."""
STOP_SECONDS = 1.0
PROGRESS_SECONDS = 1.0
"""Progress is reconciled once in this time: writes that follow one another cost a sixth less CPU than single ones."""
PROGRESS_AT = 0.25
"""Of each second of Unix time: agents answer at its beginning (`dtj_agent.pages.status_waits`)."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Following:
    uid: str
    listener: Listener
    task: asyncio.Task[None]


class AgentListeners:
    """Follows the agents of every job that `observe` is called for.

    `enqueue`: called with the key of a job whose agents have something new, the seconds until it is to be reconciled,
    and its priority. Listens from `start` until `stop`, which an operator may call again and again as it begins and
    ceases to lead.
    """

    def __init__(
        self,
        client: AgentClient,
        enqueue: Callable[[Key, float, Priority], None],
        *,
        wait_seconds: float = WAIT_SECONDS,
        poll_seconds: float = POLL_SECONDS,
        wall: Callable[[], float] = time.time,
        uniform: Uniform = random.uniform,
    ) -> None:
        self._client = client
        self._enqueue = enqueue
        self._wait_seconds = wait_seconds
        self._poll_seconds = poll_seconds
        self._wall = wall
        self._uniform = uniform
        self._following: dict[Key, _Following] = {}
        self._slots = Slots(FRESH_SEARCHES, SILENT_SEARCHES)
        self._is_started = False

    async def start(self) -> None:
        """Begins to listen. Reports of an earlier start are forgotten."""
        make_room()
        self._following.clear()
        self._client.keep_only(())
        self._is_started = True

    async def stop(self) -> None:
        """Ends all listeners. Their reports stay, for reconciles that are still in flight."""
        self._is_started = False
        tasks = [following.task for following in self._following.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_SECONDS)

    def observe(self, job: Object, stateful_set: Object | None, pods: Sequence[Object]) -> Heard:
        """Returns what the agents of `job` have reported, and follows them from now on. Never waits."""
        key, uid = job_key(job), job["metadata"]["uid"]
        following = self._following.get(key)
        if following is not None and following.uid != uid:
            self.end(key)
            following = None
        reachable = reachable_pods(job, stateful_set, pods)
        if not reachable or is_finished(job.get("status") or {}):
            self.end(key)
            return Heard(is_known=True)
        if self._is_started:
            wanted = Wanted(job, reachable, encode(operator_message(job, pods, self._wall())))
            if following is None:
                following = self._following[key] = self._follow(key, uid, wanted)
            else:
                following.listener.update(wanted)
        return Heard() if following is None else following.listener.heard()

    def end(self, key: Key) -> None:
        """Ends the listener of a job that is gone, has ended, or has no agent to listen to."""
        following = self._following.pop(key, None)
        if following is not None:
            following.task.cancel()
            self._client.forget(key)

    def keep_only(self, keys: Iterable[Key]) -> None:
        """Ends the listeners of all other jobs."""
        for key in self._following.keys() - set(keys):
            self.end(key)

    def count(self, *, silent: bool) -> int:
        """Returns the number of jobs whose agents are silent, or of all others that are listened to."""
        return sum(each.listener.is_silent == silent for each in self._following.values())

    def _follow(self, key: Key, uid: str, wanted: Wanted) -> _Following:
        listener = Listener(
            self._client,
            self._slots,
            lambda priority: self._report(key, priority),
            wanted,
            wait_seconds=self._wait_seconds,
            poll_seconds=self._poll_seconds,
            uniform=self._uniform,
        )
        task = asyncio.get_running_loop().create_task(_run(key, listener), name="agents of " + "/".join(key))
        task.add_done_callback(lambda task: self._ended(key, task))
        return _Following(uid, listener, task)

    def _report(self, key: Key, priority: Priority) -> None:
        """Enqueues a job that has changed now, and one with mere progress together with others."""
        delay = (PROGRESS_AT - self._wall()) % PROGRESS_SECONDS if priority == Priority.AGAIN else 0.0
        self._enqueue(key, delay, priority)

    def _ended(self, key: Key, task: asyncio.Task[None]) -> None:
        """Drops a listener that a bug has ended. The job's next reconcile starts another."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        logger.error("bug in the listener of %s: %r", "/".join(key), error, exc_info=error)
        following = self._following.get(key)
        if following is not None and following.task is task:
            del self._following[key]


async def _run(key: Key, listener: Listener) -> None:
    logs.set_job(*key)
    await listener.run()
