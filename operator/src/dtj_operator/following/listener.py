"""Listens to the agents of one job: searches the one that leads, then waits for its answers on one connection."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dtj_core.plan.leader_search import Answer, pod_name, read_answer
from dtj_core.plan.model import Object
from dtj_core.plan.slim_page import slim, without_clock
from dtj_operator.agent_client import AgentClient, Unanswered, agent_identity
from dtj_operator.following.retry import Pace, Uniform, retry_seconds, with_jitter
from dtj_operator.workqueue import Priority

WAIT_SECONDS = 26.0
"""Longest wait for an answer, and so the longest time between two reports of mere progress."""
UNSETTLED_SECONDS = 5.0
"""Longest wait while the leader does not lead a running attempt: another agent may lead by now."""
POLL_SECONDS = 2.0
"""Between two requests to an agent of a version that answers at once."""
PACK_BYTES = 1024
"""Shorter pages are stored as they are: most of them report progress alone, in 0.5 KiB."""
DROPPED = b""
"""Stands for a page that is no longer believed."""


@dataclass(frozen=True, kw_only=True)
class Heard:
    """The knowledge of a job's agents at one moment."""

    page: Object | None = None
    """The slim page of the last answer; None if no agent has answered since it was asked last."""
    silent_seconds: float = 0.0
    """How long no agent has answered; 0 after an answer."""
    cause: str = ""
    """Of a silence: the result of the last request."""
    is_known: bool = False
    """Whether the first search has ended."""


@dataclass(frozen=True)
class Wanted:
    """Whom to ask, as the last reconcile found it."""

    job: Object
    pods: Sequence[Object]
    message: str


class Slots:
    """Bounds how many jobs are searched at a time.

    Agents that did not answer before have few slots of their own, so that they delay no others.
    """

    def __init__(self, fresh: int, silent: int) -> None:
        self.fresh = asyncio.Semaphore(fresh)
        self.silent = asyncio.Semaphore(silent)


class Listener:
    """`changed`: called when there is something to reconcile for, with its priority. `run` ends only by cancellation.

    A page that differs from the last one by the passing of time alone is stored for the next reconcile, and causes
    none (`without_clock`). Where the agent calls two pages the same version, the later one has mere progress, and
    gives way to what has changed: the progress of many jobs may come at once.
    """

    def __init__(
        self,
        client: AgentClient,
        slots: Slots,
        changed: Callable[[Priority], None],
        wanted: Wanted,
        *,
        wait_seconds: float = WAIT_SECONDS,
        poll_seconds: float = POLL_SECONDS,
        uniform: Uniform = random.uniform,
    ) -> None:
        self.wanted = wanted
        self._client = client
        self._slots = slots
        self._changed = changed
        self._wait_seconds = wait_seconds
        self._poll_seconds = poll_seconds
        self._uniform = uniform
        self._woken = asyncio.Event()
        self._waiting: asyncio.Timeout | None = None
        """Of the request that waits for an answer."""
        self._pace = Pace()
        self._page: bytes | None = None
        self._source: tuple[str, tuple[object, ...]] | None = None
        """Name of the pod that sent the page, and its identity."""
        self._published: tuple[bytes | None, bool] = None, False
        """Digest of the page that `changed` was called for last, and whether nobody answered."""
        self._version: object = None
        """The agent's version of that page; None if there is none."""

    @property
    def is_silent(self) -> bool:
        """Whether the last search had no answer."""
        return self._published[1] and self._page is None

    def update(self, wanted: Wanted) -> None:
        """Takes what a reconcile has found. Ends a wait whose pod is gone, or whose message is outdated."""
        before, self.wanted = self.wanted, wanted
        is_woken = before.message != wanted.message
        if self._source is not None and _identities(wanted.pods, self._source[0]) != [self._source]:
            # A page of an agent that is gone, or of the one before it in the same pod.
            self._page = self._source = None
            # The next page is news even if it is the same: this reconcile plans without one.
            self._published, self._version = (DROPPED, False), None
            is_woken = True
        if self._source is None and _identities(before.pods) != _identities(wanted.pods):
            self._client.see(wanted.job, wanted.pods)
            is_woken = True
        if is_woken:
            self._woken.set()
            if self._waiting is not None and not self._waiting.expired():
                self._waiting.reschedule(asyncio.get_running_loop().time())

    def heard(self) -> Heard:
        """Returns what is known now."""
        if self._page is not None:
            return Heard(page=_unpacked(self._page), is_known=True)
        silence = self._client.silence(self.wanted.job)
        if silence is None:
            return Heard(is_known=self._published != (None, False))
        return Heard(silent_seconds=self._client.silent_seconds(self.wanted.job), cause=silence.result, is_known=True)

    async def run(self) -> None:
        """Listens until cancelled."""
        clock = asyncio.get_running_loop().time
        heard: float | None = None
        failing_since: float | None = None
        while True:
            await asyncio.sleep(self._pace.pause(clock()))
            self._woken.clear()
            wanted = self.wanted
            found = await self._search(wanted, heard, is_retry=failing_since is not None)
            if found is not None and not self._is_same(wanted.pods, found.pod):
                continue
            if found is not None:
                failing_since = None
                self._publish(found)
                heard = await self._follow(found)
            else:
                failing_since = clock() if failing_since is None else failing_since
                self._publish(None)
                await self._sleep(with_jitter(retry_seconds(clock() - failing_since), self._uniform))

    async def _search(self, wanted: Wanted, heard: float | None, *, is_retry: bool) -> Answer | None:
        async with self._slots.silent if is_retry else self._slots.fresh:
            return await self._client.search(wanted.job, wanted.pods, wanted.message, heard=heard)

    async def _follow(self, answer: Answer) -> float:
        """Takes one answer after the other from the agent that leads. Returns when one of the job answered last."""
        now = self._client.now
        # Jobs whose listeners begin together, as after a restart of the operator, would else report together for ever.
        share = self._uniform(0.0, 1.0)
        while True:
            pod, version = self._pod(answer.pod), answer.page.get("statusVersion")
            if pod is None or self._source is None:  # the page was dropped meanwhile
                return now()
            if not isinstance(version, str):
                await self._sleep(self._poll_seconds)
                return now()
            wait = share * self._wait_seconds if answer.is_settled else min(UNSETTLED_SECONDS, self._wait_seconds)
            share, asked = 1.0, now()
            try:
                page = await self._listen(pod, version, wait)
            except Unanswered as error:
                return asked if error.is_late else now()
            if not self._is_same((pod,), answer.pod):
                return now()
            if page is None:
                self._woken.clear()
                continue
            answer = read_answer(pod, page)
            self._publish(answer)
            if not answer.is_settled:
                return now()
            await asyncio.sleep(self._pace.pause(asyncio.get_running_loop().time()))

    async def _listen(self, pod: Object, version: str, wait: float) -> Object | None:
        """Returns the next page; None if `update` has ended the wait. Raises Unanswered."""
        wanted = self.wanted
        try:
            async with asyncio.timeout(None) as self._waiting:
                return await self._client.listen(wanted.job, pod, wanted.message, version, wait)
        except TimeoutError:
            return None
        finally:
            self._waiting = None

    def _publish(self, answer: Answer | None) -> None:
        """Stores the page of an answer, and calls `changed` if more than the time differs from the last one."""
        self._page = self._source = digest = version = None
        if answer is not None and (pod := self._pod(answer.pod)) is not None:
            page = slim(answer.page)
            self._page = _packed(page)
            self._source, version = (answer.pod, agent_identity(pod)), answer.page.get("statusVersion")
            digest = hashlib.sha256(json.dumps(without_clock(page)).encode()).digest()
        published = digest, answer is None
        if published != self._published:
            is_progress = version is not None and version == self._version
            self._published, self._version = published, version
            self._changed(Priority.AGAIN if is_progress else Priority.CHANGED)

    def _is_same(self, pods: Sequence[Object], name: str) -> bool:
        """Returns whether the pod of this name is still the one that was asked: it may have been replaced meanwhile."""
        return _identities(pods, name) == _identities(self.wanted.pods, name)

    def _pod(self, name: str) -> Object | None:
        return next((pod for pod in self.wanted.pods if pod_name(pod) == name), None)

    async def _sleep(self, seconds: float) -> None:
        """Sleeps until `update` has something new, at most for these seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass


def _packed(page: Object) -> bytes:
    """Returns the page as JSON, compressed where that saves more than the time is worth."""
    text = json.dumps(page).encode()
    return text if len(text) < PACK_BYTES else zlib.compress(text, 1)


def _unpacked(packed: bytes) -> Object:
    page: Object = json.loads(packed if packed.startswith(b"{") else zlib.decompress(packed))
    return page


def _identities(pods: Sequence[Object], name: str = "") -> list[tuple[str, tuple[object, ...]]]:
    """Returns the pods' names and agents; of one name, or of all."""
    return [(pod_name(pod), agent_identity(pod)) for pod in pods if not name or pod_name(pod) == name]
