"""Observes a job: its children from the API server, and its progress from its agents."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from dtj_core.plan.leader_search import reachable_pods
from dtj_core.plan.model import Object, Observed
from dtj_operator import errors
from dtj_operator.following.listeners import AgentListeners
from dtj_operator.kube.client import Client
from dtj_operator.kube.resources import JOB, POD, SERVICE, STATEFUL_SET, Resource, job_selector

Key = tuple[str, str]

REUSE_SECONDS = 30.0


@dataclass(frozen=True)
class _Seen:
    job: Object
    observed: Observed
    time: float


class Observer:
    """Reads by name and by label, never from a watch's cache: kopf keeps ghosts after a re-list.

    The agents' reports are in memory: listeners follow them, so an observation waits for no agent.
    As long as no event about the job's objects arrived and the operator wrote nothing, an observation
    reuses reads that are at most `reuse_seconds` old.
    """

    def __init__(
        self,
        client: Client,
        agents: AgentListeners,
        *,
        reuse_seconds: float = REUSE_SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._agents = agents
        self._reuse = reuse_seconds
        self._now = now
        self._seen: dict[Key, _Seen] = {}
        self._reading: set[Key] = set()
        """Jobs whose reads have begun, with no event since."""

    def invalidate(self, key: Key) -> None:
        """Drops what was read of this job, because something about it has changed."""
        self._seen.pop(key, None)
        self._reading.discard(key)

    def keep_only(self, keys: Iterable[Key]) -> None:
        """Drops all other jobs, which are gone although no event reported their end."""
        wanted = set(keys)
        self._seen = {key: seen for key, seen in self._seen.items() if key in wanted}
        self._agents.keep_only(wanted)

    async def get_job(self, key: Key) -> Object | None:
        """Returns the job, or None if there is none."""
        seen = self._seen.get(key)
        if seen is not None and self._now() - seen.time < self._reuse:
            return seen.job
        self._seen.pop(key, None)
        # Mark the job before the first read, because an event during the reads makes them stale.
        self._reading.add(key)
        job = await self._get(JOB, *key)
        if job is None or "deletionTimestamp" in job["metadata"]:
            self._agents.end(key)
        return job

    async def observe(self, job: Object) -> Observed:
        """Returns the children of `job` and the status that its agents report."""
        key = job["metadata"]["namespace"], job["metadata"]["name"]
        seen = self._seen.get(key)
        if seen is not None and seen.job is job:
            observed = seen.observed
        else:
            started = self._now()
            namespace, name = key
            stateful_set, service, pods = await asyncio.gather(
                self._get(STATEFUL_SET, namespace, name),
                self._get(SERVICE, namespace, name),
                self._client.list(POD, namespace, job_selector(name)),
            )
            observed = Observed(stateful_set=stateful_set, service=service, pods=tuple(pods))
            if key in self._reading and reachable_pods(job, observed.stateful_set, observed.pods):
                self._seen[key] = _Seen(job, observed, started)
            self._reading.discard(key)
        heard = self._agents.observe(job, observed.stateful_set, observed.pods)
        return replace(
            observed,
            agent=heard.page,
            agent_silent_seconds=heard.silent_seconds,
            agent_silence=heard.cause,
            agent_asked=heard.is_known,
        )

    async def _get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        try:
            return await self._client.get(resource, namespace, name)
        except errors.ObjectNotFound:
            return None
