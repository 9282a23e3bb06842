"""Observes a job: its children from the store, and its progress from its agents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dtj_core.plan import runtimes
from dtj_core.plan.conditions import is_finished
from dtj_core.plan.job_status import has_started
from dtj_core.plan.model import Object, Observed
from dtj_core.plan.pods import ordinal, pods_of
from dtj_core.plan.workload import flavors_of, is_admitted, is_evicted
from dtj_operator import errors
from dtj_operator.following.listeners import AgentListeners
from dtj_operator.kube.cache.sick_nodes import node_health
from dtj_operator.kube.cache.store import Key, Store
from dtj_operator.kube.client import Client
from dtj_operator.kube.resources import FLAVOR, POD, SERVICE, STATEFUL_SET, WORKLOAD, Resource, job_key, job_selector


class Observer:
    """Reads from the store alone, with three exceptions: flavors of Kueue, the group that the last leader has known,
    and an object without the operator's label.

    No watch shows the last one. One of somebody else that has a child's name is found when the child can't be
    applied; our own StatefulSet that somebody took the label from, when its pods are still there.
    Reads of it are repeated at each look until it is gone, or has the label.
    The agents' reports are in memory: listeners follow them, so an observation waits for no agent.
    """

    def __init__(self, store: Store, client: Client, agents: AgentListeners) -> None:
        self._store = store
        self._client = client
        self._agents = agents
        self._unlabelled: dict[Key, set[Resource]] = {}
        self._begun: set[Key] = set()
        """Jobs whose group has been observed since this operator leads."""

    def begin(self) -> None:
        """Begins a term as the leader, whose cache may be older than the statuses of the leader before."""
        self._begun.clear()

    def keep_only(self, keys: Iterable[Key]) -> None:
        """Drops all other jobs."""
        wanted = set(keys)
        self._unlabelled = {key: kinds for key, kinds in self._unlabelled.items() if key in wanted}
        self._begun &= wanted
        self._agents.keep_only(wanted)

    def add_unlabelled(self, resource: Resource, key: Key) -> None:
        """Notes that an object without our label has the name of this child."""
        self._unlabelled.setdefault(key, set()).add(resource)

    def get_job(self, key: Key) -> Object | None:
        """Returns the job, or None if there is none."""
        job = self._store.job(key)
        if job is None or "deletionTimestamp" in job["metadata"]:
            self._agents.end(key)
        return job

    async def observe(self, job: Object) -> Observed:
        """Returns the children of `job` and the status that its agents report."""
        key = job_key(job)
        await self._catch_up(job)
        pods = self._store.pods(key)
        observed = Observed(
            stateful_set=self._store.child(STATEFUL_SET, key),
            service=self._store.child(SERVICE, key),
            pods=pods,
            nodes=node_health(self._store, pods),
            workload=self._store.workload(key),
            kueue_served=self._store.serves_workloads(),
            runtime=self._store.runtime(job),
            runtimes_served=self._store.serves_runtimes(),
        )
        if observed.workload is not None and _may_start(job, observed.stateful_set, observed.workload):
            observed = replace(observed, flavors=await self._read_flavors(observed.workload))
        if observed.stateful_set is None and _has_lost_its_set(job, observed.pods):
            self.add_unlabelled(STATEFUL_SET, key)
        if key in self._unlabelled:
            observed = await self._with_unlabelled(key, observed)
        heard = self._agents.observe(runtimes.effective(job), observed.stateful_set, observed.pods)
        return replace(
            observed,
            agent=heard.page,
            agent_silent_seconds=heard.silent_seconds,
            agent_silence=heard.cause,
            agent_asked=heard.is_known,
        )

    async def _catch_up(self, job: Object) -> None:
        """Reads the job's group if the store may be older than the job's status.

        The status of another leader may be from a look at pods, or at a StatefulSet, that no watch has shown here
        yet; those pods would be taken for lost. Our own statuses are from this store, so one look in a term is enough.
        """
        key = job_key(job)
        status = job.get("status") or {}
        # The job's own watch may be behind, too: a status of a group that has not started shows nothing yet.
        if key in self._begun or not has_started(status):
            return
        if not _is_whole(self._store.child(STATEFUL_SET, key), self._store.pods(key), status):
            for resource in (STATEFUL_SET, POD):
                for obj in await self._client.list(resource, key[0], job_selector(key[1])):
                    self._store.answer(resource, obj)
        self._begun.add(key)

    async def _read_flavors(self, workload: Object) -> dict[str, Object]:
        """Returns the flavors of the quota that a job is about to use, by name; without those that are gone."""
        found = {}
        for name in flavors_of(workload):
            try:
                found[name] = await self._client.get(FLAVOR, None, name)
            except errors.ObjectNotFound:
                continue
        return found

    async def _with_unlabelled(self, key: Key, observed: Observed) -> Observed:
        found: dict[Resource, Object] = {}
        for resource in self._unlabelled.pop(key):
            known = self._store.workload(key) if resource is WORKLOAD else self._store.child(resource, key)
            if known is not None:
                continue
            try:
                found[resource] = await self._client.get(resource, *key)
            except errors.ObjectNotFound:
                continue
            self.add_unlabelled(resource, key)
        return replace(
            observed,
            stateful_set=found.get(STATEFUL_SET, observed.stateful_set),
            service=found.get(SERVICE, observed.service),
            workload=found.get(WORKLOAD, observed.workload),
        )


def _is_whole(stateful_set: Object | None, pods: tuple[Object, ...], status: Object) -> bool:
    """Returns whether all pods of the set run, and as many are ready as `status` counts."""
    if stateful_set is None:
        return False
    wanted: int = stateful_set["spec"]["replicas"]
    mine = [pod for pod in pods_of(stateful_set, pods) if ordinal(pod) < wanted]
    return sum(map(_runs, mine)) >= wanted and _ready(mine) >= int(status.get("readyReplicas", 0))


def _runs(pod: Object) -> bool:
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    all_run = bool(containers) and all("running" in (each.get("state") or {}) for each in containers)
    return all_run and "deletionTimestamp" not in pod["metadata"]


def _ready(pods: Iterable[Object]) -> int:
    conditions = ((pod.get("status") or {}).get("conditions") or () for pod in pods)
    return sum(any((each["type"], each["status"]) == ("Ready", "True") for each in one) for one in conditions)


def _may_start(job: Object, stateful_set: Object | None, workload: Object) -> bool:
    """Returns whether the StatefulSet of an admitted job may be created now, with the flavors of its quota.

    A job that stops or has ended keeps its quota for a while, and must give it back without a flavor
    that somebody has deleted meanwhile.
    """
    if stateful_set is not None or job["spec"].get("suspend") or is_finished(job.get("status") or {}):
        return False
    return is_admitted(workload) and not is_evicted(workload)


def _has_lost_its_set(job: Object, pods: tuple[Object, ...]) -> bool:
    """Returns whether a job that is to run has pods of a StatefulSet of its name, and none of them terminates."""
    if job["spec"].get("suspend") or is_finished(job.get("status") or {}) or not pods:
        return False
    owners = [owner for pod in pods for owner in pod["metadata"].get("ownerReferences") or ()]
    named = any((each.get("kind"), each.get("name")) == ("StatefulSet", job["metadata"]["name"]) for each in owners)
    return named and all("deletionTimestamp" not in pod["metadata"] for pod in pods)
