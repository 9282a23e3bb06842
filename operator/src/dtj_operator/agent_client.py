"""Asking a job's agent how it goes: `GET /status` of pod 0."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import aiohttp

from dtj_contract import names
from dtj_contract.status_token import status_token
from dtj_core.plan.children import agent_key
from dtj_core.plan.job import is_owned
from dtj_core.plan.model import Object, Settings
from dtj_operator.kube.resources import job_key

STATUS_SECONDS = 1.0
STATUS_BYTES = 256 * 1024
CONCURRENCY = 100

ANSWERED, UNREACHABLE, REFUSED, INVALID = RESULTS = ("answered", "unreachable", "refused", "invalid")  # of a poll, as a label

logger = logging.getLogger(__name__)


class _Unanswered(Exception):
    """No answer that can be used; `result` is one of RESULTS."""

    def __init__(self, result: str, message: str) -> None:
        super().__init__(message)
        self.result = result


class _OtherKey(_Unanswered):
    """The agent refused one of two keys: the next question has the other one."""


@dataclass(frozen=True)
class _Silence:
    """Of the agent of one pod, as long as the pod's containers are the same."""

    pod: tuple[object, ...]
    since: float
    asked: float
    result: str


class AgentClient:
    """One connection pool for all agents. Make it on the event loop that uses it.

    An agent that does not answer is asked later and later (Settings.poll_seconds), however often its job is looked at. Since
    when it has been silent is remembered here alone: after a restart of the operator it counts from the first question.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        seconds: float = STATUS_SECONDS,
        count: Callable[[str], None] = lambda result: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._with_previous: set[str] = set()
        """Uids of jobs whose agents have refused the present key: they were started before it was replaced."""
        self._count = count
        self._now = now
        self._silent: dict[tuple[str, str], _Silence] = {}
        # Pods come and go with their addresses: a kept connection would rarely be of use, and holds a descriptor.
        connector = aiohttp.TCPConnector(limit=CONCURRENCY, force_close=True)
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=seconds))

    async def close(self) -> None:
        await self._session.close()

    def silent_seconds(self, job: Object) -> float:
        """For how long the job's agent has left every question unanswered; 0 after an answer."""
        silence = self._silent.get(job_key(job))
        return 0.0 if silence is None else self._now() - silence.since

    def keep_only(self, keys: Iterable[tuple[str, str]]) -> None:
        """Forget the agents of all other jobs."""
        wanted = set(keys)
        self._silent = {key: silence for key, silence in self._silent.items() if key in wanted}

    async def status(self, job: Object, pod: Object) -> Object | None:
        """The agent's answer, None if there was none: it starts, it ends, its node is gone. The planner lives without."""
        key, who = job_key(job), _identity(pod)
        silence = self._silent.get(key)
        if silence is not None and silence.pod != who:
            silence = None
            del self._silent[key]
        now = self._now()
        if silence is not None and now - silence.asked < self._settings.poll_seconds(silence.asked - silence.since):
            return None
        try:
            try:
                answer = await self._ask(job, pod)
            except _OtherKey:
                answer = await self._ask(job, pod)
        except _Unanswered as error:
            self._count(error.result)
            self._unanswered(key, _Silence(who, now, now, error.result), silence, pod["metadata"]["name"], error)
            return None
        self._count(ANSWERED)
        if silence is not None:
            del self._silent[key]
            logger.info("the agent of pod %s answers", pod["metadata"]["name"])
        return answer

    def _unanswered(self, key: tuple[str, str], new: _Silence, before: _Silence | None, pod: str, error: _Unanswered) -> None:
        """Remembers it, and logs it if the poll before ended in another way."""
        self._silent[key] = new if before is None else replace(new, since=before.since)
        if before is None or before.result != new.result:
            # Every pod's agent is unreachable for a moment as it starts.
            level = logging.DEBUG if new.result == UNREACHABLE else logging.WARNING
            logger.log(level, "the agent of pod %s %s", pod, error)

    async def _ask(self, job: Object, pod: Object) -> Object:
        """Raises _Unanswered."""
        address = pod["status"]["podIP"]
        uid = job["metadata"]["uid"]
        url = f"http://{'[' + address + ']' if ':' in address else address}:{self._settings.agent_port}/status"
        headers = {"Authorization": "Bearer " + status_token(self._key(uid).encode())}
        try:
            async with self._session.get(url, headers=headers, allow_redirects=False) as response:
                if response.status == 401 and self._settings.previous_master_key is not None:
                    self._with_previous ^= {uid}
                    raise _OtherKey(REFUSED, "answered 401 to GET /status")
                if response.status != 200:
                    raise _Unanswered(REFUSED, f"answered {response.status} to GET /status")
                text = bytearray()
                async for part in response.content.iter_any():
                    text += part
                    if len(text) > STATUS_BYTES:  # a pod may answer anything
                        raise _Unanswered(INVALID, f"answers more than {STATUS_BYTES} bytes")
        except (aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError, OSError) as error:
            raise _Unanswered(UNREACHABLE, f"can't be asked: {str(error) or type(error).__name__}") from error
        try:
            said = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _Unanswered(INVALID, f"answers no JSON: {error}") from error
        if not isinstance(said, dict) or said.get("uid") != uid:
            raise _Unanswered(INVALID, f"at {address} speaks for another job")
        return said

    def _key(self, uid: str) -> str:
        previous = self._settings.previous_master_key
        if previous is None or uid not in self._with_previous:
            return agent_key(uid, self._settings)
        return agent_key(uid, replace(self._settings, master_key=previous))


def _identity(pod: Object) -> tuple[object, ...]:
    """Differs where another agent may be there: one that is silent by another cause, or not at all."""
    status = pod.get("status", {})
    starts = (container.get("state", {}).get("running", {}).get("startedAt") for container in status.get("containerStatuses", []))
    return (pod["metadata"].get("uid"), status.get("podIP"), *starts)


def coordinator_pod(job: Object, stateful_set: Object | None, pods: tuple[Object, ...]) -> Object | None:
    """Pod 0, if it has an address and something in it runs.

    Only one that the job's own StatefulSet made: it gets the job's token, and is believed.
    """
    if stateful_set is None or not is_owned(stateful_set, job["metadata"]["uid"]):
        return None
    for pod in pods:
        labels = pod["metadata"].get("labels", {})
        status = pod.get("status", {})
        if labels.get(names.LABEL_POD_INDEX) != "0" or not status.get("podIP"):
            continue
        if not is_owned(pod, stateful_set["metadata"]["uid"]):
            continue
        if any("running" in container.get("state", {}) for container in status.get("containerStatuses", [])):
            return pod
    return None
