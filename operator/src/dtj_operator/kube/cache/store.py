"""The objects of one kind, by job: merges lists, watch events and the answers to our own writes. Pure.

Three rules keep the store true:

- The newest version of an object wins, wherever it comes from. The API server's resourceVersions of
  one kind are numbers that grow with each write.
- A list replaces whatever was known before it. Only what a write of ours was answered with, and
  the list is too old to have, stays.
- An answer that is older than the watch's position is dropped, because the watch has shown the
  same, or a later deletion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from dtj_contract import names
from dtj_core.api.runtime import REF
from dtj_core.plan.model import Object, Settings
from dtj_core.plan.node_signs import SickNode, SickNodeSettings
from dtj_operator.kube.cache.trim import (
    trim_job,
    trim_node,
    trim_pod,
    trim_runtime,
    trim_service,
    trim_stateful_set,
    trim_workload,
)
from dtj_operator.kube.resources import (
    JOB,
    NODE,
    POD,
    RUNTIME,
    SERVICE,
    STATEFUL_SET,
    WORKLOAD,
    Resource,
    job_key,
    job_selector,
)

Key = tuple[str, str]
"""Namespace and name of a job; of a runtime or a node, which have no namespace, "" and its name."""


@dataclass(frozen=True)
class Kind:
    """A kind of object that is cached: which of its objects, under which job, and what of them."""

    resource: Resource
    selector: str | None
    trim: Callable[[Object], Object]
    optional: bool = False
    """Whether the API server may not serve the kind, because its CRD is another project's."""
    in_cluster: bool = False
    """Whether its objects have no namespace. The operator also works where they are not served, or not allowed."""


KINDS = (
    Kind(JOB, None, trim_job),
    Kind(RUNTIME, None, trim_runtime, in_cluster=True),
    Kind(STATEFUL_SET, job_selector(), trim_stateful_set),
    Kind(SERVICE, job_selector(), trim_service),
    Kind(POD, job_selector(), trim_pod),
)
QUEUE_KINDS = (Kind(WORKLOAD, job_selector(), trim_workload, optional=True),)


def node_kind(settings: SickNodeSettings) -> Kind:
    """Returns the kind of nodes, of which only the signs are kept."""
    return Kind(NODE, None, partial(trim_node, settings=settings), in_cluster=True)


def kinds_for(settings: Settings) -> tuple[Kind, ...]:
    """Returns the kinds that an operator with these settings caches."""
    queue = QUEUE_KINDS if settings.kueue else ()
    nodes = () if settings.sick_nodes is None else (node_kind(settings.sick_nodes),)
    return (*KINDS, *queue, *nodes)


def version_of(obj: Object) -> int:
    """Returns the resourceVersion as a number; 0 if the object has none."""
    text = str(obj["metadata"].get("resourceVersion") or "")
    return int(text) if text.isdecimal() else 0


class Table:
    """The stored objects of one kind. Each method returns the jobs about which something has changed."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.served = True
        """False while the API server does not serve an optional kind, or one of the cluster, or does not allow to."""
        self._objects: dict[Key, dict[str, Object]] = {}
        """By job, then by name."""
        self._jobs: dict[Key, str] = {}
        """The job of each object that has another name than its job, by the object's own name."""
        self._positions: dict[str | None, int] = {}
        """How far the list or watch of each scope (a namespace, or None for all) has come."""
        self._deleted: dict[str, Key] = {}
        """Objects that we have deleted and the watch may still show, by uid, with their own names."""

    def __len__(self) -> int:
        return sum(map(len, self._objects.values()))

    def get(self, key: Key, name: str | None = None) -> Object | None:
        """Returns the object of this job and name; its name is the job's unless one is given."""
        return self._objects.get(key, {}).get(key[1] if name is None else name)

    def of_job(self, key: Key) -> tuple[Object, ...]:
        return tuple(self._objects.get(key, {}).values())

    def keys(self) -> Iterator[Key]:
        """Yields the jobs that have an object here."""
        return iter(self._objects)

    def replace(self, scope: str | None, listed: Iterable[Object], version: str) -> set[Key]:
        """Takes over a complete list of the scope, as of `version`."""
        at = int(version) if version.isdecimal() else 0
        fresh = {_own_key(obj): obj for obj in listed if self._job_of(obj) is not None}
        listed_uids = {obj["metadata"]["uid"] for obj in fresh.values()}
        self._deleted = {
            uid: own for uid, own in self._deleted.items() if uid in listed_uids or scope not in (None, own[0])
        }
        changed = set()
        for known in [each for bucket in self._objects.values() for each in bucket.values()]:
            own = _own_key(known)
            if scope in (None, own[0]) and own not in fresh and version_of(known) <= at:
                changed |= self._remove(known)
        for obj in fresh.values():
            changed |= self._put(obj)
        self._positions[scope] = max(at, self._positions.get(scope, 0))
        return changed

    def clear(self, scope: str | None) -> set[Key]:
        """Drops all objects of the scope: their kind is not served."""
        known = [each for bucket in self._objects.values() for each in bucket.values()]
        return {key for each in known if scope in (None, _own_key(each)[0]) for key in self._remove(each)}

    def event(self, scope: str | None, kind: str, obj: Object) -> set[Key]:
        """Takes over a watch event: ADDED, MODIFIED or DELETED. `obj`: as the API server sends it."""
        version, own = version_of(obj), _own_key(obj)
        self.advance(scope, version)
        if kind != "DELETED":
            # Most events of jobs show our own writes, whose answers are here already.
            return set() if self._has(own, version) else self._put(self.kind.trim(obj))
        self._deleted.pop(obj["metadata"]["uid"], None)
        known = self._find(own)
        if known is None or (version and version_of(known) > version):
            return set()  # a newer object has the name by now
        return self._remove(known)

    def advance(self, scope: str | None, version: int) -> None:
        """Notes how far the watch of the scope has come."""
        self._positions[scope] = max(version, self._positions.get(scope, 0))

    def answer(self, obj: Object) -> None:
        """Takes over what the API server answered to a write of ours, unless the watch is past it.

        No job is reported, because the caller knows its own write.
        """
        namespace = obj["metadata"].get("namespace")
        position = max(self._positions.get(namespace, 0), self._positions.get(None, 0))
        if version_of(obj) > position:
            self._put(self.kind.trim(obj))

    def deleted(self, namespace: str, name: str, uid: str) -> None:
        """Takes over that the API server has no object with this uid any more."""
        known = self._find((namespace, name))
        if known is not None and known["metadata"]["uid"] == uid:
            self._remove(known)
            self._deleted[uid] = (namespace, name)

    def _put(self, obj: Object) -> set[Key]:
        key, own = self._job_of(obj), _own_key(obj)
        known = self._find(own)
        if obj["metadata"]["uid"] in self._deleted:
            return set()
        if self._has(own, version_of(obj)):
            return set()
        if key is None:  # the label that names the job was removed
            return self._remove(known) if known is not None else set()
        changed = {key} if known is None or not is_same(known, obj) else set()
        if known is not None and self._job_of(known) != key:
            changed |= self._remove(known)
        self._objects.setdefault(key, {})[own[1]] = obj
        if own[1] != key[1]:
            self._jobs[own] = key[1]
        return changed

    def _has(self, own: Key, version: int) -> bool:
        """Returns whether the object is stored in this version or a newer one."""
        known = self._find(own)
        return known is not None and version_of(known) >= version > 0

    def _remove(self, known: Object) -> set[Key]:
        key, own = self._job_of(known), _own_key(known)
        assert key is not None, "only objects of a job are stored"
        bucket = self._objects[key]
        del bucket[own[1]]
        if not bucket:
            del self._objects[key]
        self._jobs.pop(own, None)
        return {key}

    def _find(self, own: Key) -> Object | None:
        return self._objects.get((own[0], self._jobs.get(own, own[1])), {}).get(own[1])

    def _job_of(self, obj: Object) -> Key | None:
        metadata = obj["metadata"]
        if self.kind.resource in (JOB, RUNTIME, NODE):
            return _own_key(obj)
        job = (metadata.get("labels") or {}).get(names.LABEL_JOB)
        return None if job is None else (metadata["namespace"], job)


class NodeTable(Table):
    """The nodes, with the sick ones at hand: every look at a job asks for them, and most nodes are healthy."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(kind)
        self.sick: dict[str, SickNode] = {}
        """By name."""

    def __len__(self) -> int:
        return len(self._objects)

    def _put(self, obj: Object) -> set[Key]:
        changed = super()._put(obj)
        name = obj["metadata"]["name"]
        stored = self._find(("", name)) or {}
        if signs := stored.get("signs"):
            self.sick[name] = SickNode(signs=tuple(signs), takes_pods=bool(stored["takesPods"]))
        else:
            self.sick.pop(name, None)
        return changed

    def _remove(self, known: Object) -> set[Key]:
        self.sick.pop(known["metadata"]["name"], None)
        return super()._remove(known)


def is_same(one: Object, other: Object) -> bool:
    """Returns whether two trimmed objects differ in nothing but their resourceVersion."""
    if one.keys() != other.keys() or any(one[key] != other[key] for key in one if key != "metadata"):
        return False
    first, second = one["metadata"], other["metadata"]
    return first.keys() == second.keys() and all(first[key] == second[key] for key in first if key != "resourceVersion")


def _taken_runtime(job: Object) -> str | None:
    name: str | None = ((job.get("status") or {}).get("runtime") or {}).get("name")
    return name


def _own_key(obj: Object) -> Key:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


class Store:
    """The tables of all kinds."""

    def __init__(self, kinds: Iterable[Kind] = KINDS) -> None:
        self.tables = {kind.resource: (NodeTable if kind.resource is NODE else Table)(kind) for kind in kinds}

    def job(self, key: Key) -> Object | None:
        return self.tables[JOB].get(key)

    def jobs(self) -> list[Object]:
        return [job for key in self.tables[JOB].keys() for job in self.tables[JOB].of_job(key)]  # noqa: SIM118

    def runtime(self, job: Object) -> Object | None:
        """Returns the runtime that the job refers to."""
        name = (job["spec"].get(REF) or {}).get("name")
        return None if name is None else self.tables[RUNTIME].get(("", name))

    def serves_runtimes(self) -> bool:
        """Returns whether the operator can list runtimes: their CRD is there, and the right is granted."""
        return self.tables[RUNTIME].served

    def referring_jobs(self, runtime: str) -> list[Key]:
        """Returns the jobs that refer to this runtime and have not taken it."""
        found = (job for job in self.jobs() if (job["spec"].get(REF) or {}).get("name") == runtime)
        return [job_key(job) for job in found if _taken_runtime(job) != runtime]

    def node_table(self) -> NodeTable | None:
        """Returns the table of nodes; None if they are not watched."""
        table = self.tables.get(NODE)
        return table if isinstance(table, NodeTable) else None

    def child(self, resource: Resource, key: Key) -> Object | None:
        """Returns the job's child of this kind that has the job's name."""
        return self.tables[resource].get(key)

    def workload(self, key: Key) -> Object | None:
        """Returns Kueue's object of the job's name; None if there is none, or Kueue is not used."""
        return self.tables[WORKLOAD].get(key) if WORKLOAD in self.tables else None

    def serves_workloads(self) -> bool:
        return WORKLOAD in self.tables and self.tables[WORKLOAD].served

    def pods(self, key: Key) -> tuple[Object, ...]:
        return self.tables[POD].of_job(key)

    def answer(self, resource: Resource, obj: Object) -> None:
        """Takes over the answer to a write. Objects of kinds that are not cached are ignored."""
        if resource in self.tables:
            self.tables[resource].answer(obj)

    def deleted(self, resource: Resource, namespace: str, name: str, uid: str) -> None:
        """Takes over that an object with this uid exists no more."""
        if resource in self.tables:
            self.tables[resource].deleted(namespace, name, uid)
