"""Polls the agent of a job's pod 0: `GET /status`.

The request hands over what the agents can't know: the budget that the job's spec has now, and why
Kubernetes ended pods.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import aiohttp

from dtj_contract import names
from dtj_contract.operator_message import HEADER, encode
from dtj_contract.status_token import status_token
from dtj_core.plan.children import agent_key
from dtj_core.plan.job import is_owned
from dtj_core.plan.model import Object, Settings
from dtj_core.plan.operator_message import operator_message
from dtj_operator.kube.resources import job_key

STATUS_SECONDS = 1.0
STATUS_BYTES = 256 * 1024
CONCURRENCY = 100

# The results of a poll, as labels of the metric.
ANSWERED, UNREACHABLE, REFUSED, INVALID = RESULTS = ("answered", "unreachable", "refused", "invalid")

logger = logging.getLogger(__name__)


class _Unanswered(Exception):
    """No usable answer. `result` is one of RESULTS."""

    def __init__(self, result: str, message: str) -> None:
        super().__init__(message)
        self.result = result


class _OtherKey(_Unanswered):
    """The agent rejected one of two keys, so the next request uses the other."""


@dataclass(frozen=True)
class _Silence:
    """The silence of one pod's agent, valid until one of the pod's containers changes."""

    pod: tuple[object, ...]
    since: float
    asked: float
    result: str


class AgentClient:
    """A connection pool for all agents. Create it on the event loop that uses it.

    A silent agent is polled less and less often (Settings.poll_seconds), however often its job is
    reconciled. The start of the silence is remembered only here, so after a restart of the operator
    the silence counts from the first poll.
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
        """Uids of jobs whose agents rejected the current key: they were started before it was replaced."""
        self._count = count
        self._now = now
        self._silent: dict[tuple[str, str], _Silence] = {}
        # A pod changes its address with each life, so a kept connection would rarely be reused and
        # would hold a file descriptor.
        connector = aiohttp.TCPConnector(limit=CONCURRENCY, force_close=True)
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=seconds))

    async def close(self) -> None:
        await self._session.close()

    def silent_seconds(self, job: Object) -> float:
        """Returns for how long the job's agent has answered no poll; 0 after an answer."""
        silence = self._silent.get(job_key(job))
        return 0.0 if silence is None else self._now() - silence.since

    def keep_only(self, keys: Iterable[tuple[str, str]]) -> None:
        """Drops the agents of all other jobs."""
        wanted = set(keys)
        self._silent = {key: silence for key, silence in self._silent.items() if key in wanted}

    async def status(self, job: Object, pod: Object, pods: Iterable[Object] = ()) -> Object | None:
        """Returns the agent's status, or None if it gave no usable answer.

        `pods`: those of the job's StatefulSet, whose ends are handed over.
        The agent may be starting or stopping, or its node may be gone; the planner copes without.
        """
        key, who = job_key(job), _identity(pod)
        silence = self._silent.get(key)
        if silence is not None and silence.pod != who:
            silence = None
            del self._silent[key]
        now = self._now()
        if silence is not None and now - silence.asked < self._settings.poll_seconds(silence.asked - silence.since):
            return None
        message = encode(operator_message(job, pods, time.time()))
        try:
            try:
                answer = await self._ask(job, pod, message)
            except _OtherKey:
                answer = await self._ask(job, pod, message)
        except _Unanswered as error:
            self._count(error.result)
            self._unanswered(key, _Silence(who, now, now, error.result), silence, pod["metadata"]["name"], error)
            return None
        self._count(ANSWERED)
        if silence is not None:
            del self._silent[key]
            logger.info("the agent of pod %s answers again", pod["metadata"]["name"])
        return answer

    def _unanswered(
        self, key: tuple[str, str], new: _Silence, before: _Silence | None, pod: str, error: _Unanswered
    ) -> None:
        """Records the silence, and logs it unless the previous poll failed in the same way."""
        self._silent[key] = new if before is None else replace(new, since=before.since)
        if before is None or before.result != new.result:
            # Every agent is unreachable for a moment while its pod starts.
            level = logging.DEBUG if new.result == UNREACHABLE else logging.WARNING
            logger.log(level, "the agent of pod %s %s", pod, error)

    async def _ask(self, job: Object, pod: Object, message: str) -> Object:
        """Requests the status once. Raises _Unanswered."""
        address = pod["status"]["podIP"]
        uid = job["metadata"]["uid"]
        url = f"http://{'[' + address + ']' if ':' in address else address}:{self._settings.agent_port}/status"
        headers = {"Authorization": "Bearer " + status_token(self._key(uid).encode()), HEADER: message}
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
                    if len(text) > STATUS_BYTES:  # a pod may send anything
                        raise _Unanswered(INVALID, f"answered more than {STATUS_BYTES} bytes")
        except (aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError, OSError) as error:
            raise _Unanswered(UNREACHABLE, f"is unreachable: {str(error) or type(error).__name__}") from error
        try:
            report = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _Unanswered(INVALID, f"answered with invalid JSON: {error}") from error
        if not isinstance(report, dict) or report.get("uid") != uid:
            raise _Unanswered(INVALID, f"at {address} belongs to another job")
        return report

    def _key(self, uid: str) -> str:
        previous = self._settings.previous_master_key
        if previous is None or uid not in self._with_previous:
            return agent_key(uid, self._settings)
        return agent_key(uid, replace(self._settings, master_key=previous))


def _identity(pod: Object) -> tuple[object, ...]:
    """Returns a value that changes when another agent may be running in the pod.

    A new agent may be silent for another reason, or answer.
    """
    status = pod.get("status", {})
    starts = (
        container.get("state", {}).get("running", {}).get("startedAt")
        for container in status.get("containerStatuses", [])
    )
    return (pod["metadata"].get("uid"), status.get("podIP"), *starts)


def coordinator_pod(job: Object, stateful_set: Object | None, pods: tuple[Object, ...]) -> Object | None:
    """Returns pod 0, if it has an address and a running container.

    Only a pod that the job's own StatefulSet created is returned, because it receives the job's
    token and its answer is trusted.
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
