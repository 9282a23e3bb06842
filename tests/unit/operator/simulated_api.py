"""An API server in memory: versions, server-side apply, deletion with grace, and the errors of the real one.

Stored objects are never changed in place, so that a read may hand out the object itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from dtj_contract import names
from dtj_core.plan.model import Object
from dtj_core.plan.times import rfc3339, unix
from dtj_operator import errors
from dtj_operator.kube.resources import POD, STATEFUL_SET, Resource

NAMESPACE = "team"
Key = tuple[str, str]
"""Plural and name."""
Listener = Callable[[str, str, Object], None]
"""Receives the plural, ADDED, MODIFIED or DELETED, and the object."""


class ApiServer:
    """The objects of one namespace. `wall` returns Unix seconds."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._serial = itertools.count(1)
        self.version = 0
        """Of the last change of any object."""
        self.changes: dict[str, list[tuple[int, str, Object]]] = {}
        """The events of a watch, by plural: version, ADDED, MODIFIED or DELETED, and the object."""
        self.objects: dict[Key, Object] = {}
        self.past: dict[Key, list[tuple[float, Object | None]]] = {}
        """All versions by time: what a stale read returns."""
        self._applied: dict[str, Object] = {}
        """The last applied configuration by uid, as the managed fields would show it."""
        self.listeners: list[Listener] = []

    # --- reads ----------------------------------------------------------------------------------------------------

    def find(self, plural: str, name: str) -> Object | None:
        return self.objects.get((plural, name))

    def of(self, plural: str) -> list[Object]:
        return [found for (kind, _), found in self.objects.items() if kind == plural]

    def at(self, key: Key, time: float) -> Object | None:
        """Returns the object as it was at that time."""
        found = None
        for when, version in self.past.get(key, ()):
            if when > time:
                break
            found = version
        return found

    def list_at(self, plural: str, time: float) -> list[Object]:
        versions = (self.at(key, time) for key in self.past if key[0] == plural)
        return [version for version in versions if version is not None]

    def uids(self) -> set[str]:
        return {found["metadata"]["uid"] for found in self.objects.values()}

    # --- writes ---------------------------------------------------------------------------------------------------

    def create(self, resource: Resource, body: Object) -> Object:
        key = (resource.plural, body["metadata"]["name"])
        if key in self.objects:
            raise errors.Conflict(f"{key} already exists", status=409, reason="AlreadyExists")
        number = next(self._serial)
        metadata = body["metadata"] | {
            "namespace": NAMESPACE,
            "uid": f"{resource.kind}-{number}",
            "creationTimestamp": rfc3339(self._wall()),
            "generation": 1,
        }
        return self._store(key, {"kind": resource.kind, **body, "metadata": metadata}, "ADDED")

    def apply(self, resource: Resource, body: Object, subresource: str | None = None, *, force: bool = True) -> Object:
        """Applies as one field manager. Without `force` it takes no object that the manager has never applied."""
        sent = body["metadata"]
        key = (resource.plural, sent["name"])
        live = self.objects.get(key)
        if live is None:
            if subresource or "uid" in sent:
                raise errors.ObjectNotFound(f"{key} not found", status=404)
            created = self.create(resource, body)
            self._applied[created["metadata"]["uid"]] = body
            return created
        metadata = live["metadata"]
        if sent.get("uid", metadata["uid"]) != metadata["uid"]:
            raise errors.Conflict(f"{key}: the uid differs", status=409)
        if sent.get("resourceVersion", metadata["resourceVersion"]) != metadata["resourceVersion"]:
            raise errors.Conflict(f"{key}: the object has been modified", status=409)
        if resource is STATEFUL_SET and live["spec"].get("selector") != body["spec"]["selector"]:
            raise errors.Invalid("spec: Forbidden: updates to statefulset spec for fields other than …", status=422)
        owner = metadata["uid"] + (subresource or "")
        if not force and owner not in self._applied:
            raise errors.Conflict("Apply failed with 2 conflicts", status=409)
        before = self._applied.get(owner, {})
        self._applied[owner] = body
        if subresource is not None:
            new = {
                **live,
                subresource: merge(live.get(subresource, {}), before.get(subresource, {}), body[subresource]),
            }
            return self._store(key, new, "MODIFIED")
        new = merge(live, before, {name: value for name, value in body.items() if name != "metadata"})
        owners = _merge_owners(metadata, before.get("metadata", {}), sent)
        if sum(bool(owner.get("controller")) for owner in owners) > 1:
            raise errors.Invalid("metadata.ownerReferences: Invalid value: only one controller", status=422)
        annotations = merge(
            metadata.get("annotations", {}),
            before.get("metadata", {}).get("annotations", {}),
            sent.get("annotations", {}),
        )
        labels = metadata.get("labels", {}) | sent.get("labels", {})
        new["metadata"] = metadata | {"annotations": annotations, "labels": labels, "ownerReferences": owners}
        return self._store(key, new, "MODIFIED")

    def replace(self, resource: Resource, name: str, change: Callable[[Object], Object | None]) -> Object | None:
        """Stores what `change` makes of the object, unless there is none or the result is None."""
        key = (resource.plural, name)
        live = self.objects.get(key)
        new = change(live) if live is not None else None
        return self._store(key, new, "MODIFIED") if new is not None else None

    def delete(
        self, resource: Resource, name: str, *, uid: str | None = None, grace: float | None = None
    ) -> Object | None:
        """Deletes the object: a pod on a node terminates first, and an object with finalizers waits for them."""
        key = (resource.plural, name)
        live = self.objects.get(key)
        if live is None:
            raise errors.ObjectNotFound(f"{key} not found", status=404)
        metadata = live["metadata"]
        if uid is not None and uid != metadata["uid"]:
            raise errors.Conflict(f"{key}: the uid differs", status=409)
        seconds = 0.0
        if resource is POD and live["spec"].get("nodeName"):
            seconds = float(live["spec"].get("terminationGracePeriodSeconds", 30)) if grace is None else grace
        if not metadata.get("finalizers") and (seconds == 0 or metadata.get("deletionGracePeriodSeconds") == 0):
            return self.remove(resource, name)
        end = self._wall() + seconds
        known = unix(metadata.get("deletionTimestamp"))
        if known is not None and known <= end:
            return live  # an earlier request gave less time
        marks = {"deletionTimestamp": rfc3339(end), "deletionGracePeriodSeconds": seconds}
        return self._store(key, {**live, "metadata": metadata | marks}, "MODIFIED")

    def remove(self, resource: Resource, name: str) -> Object | None:
        """Removes the object from the store."""
        key = (resource.plural, name)
        gone = self.objects.pop(key, None)
        if gone is not None:
            self.past.setdefault(key, []).append((self._wall(), None))
            version = {"resourceVersion": str(next(self._serial))}
            self._tell(key, "DELETED", {**gone, "metadata": gone["metadata"] | version})
        return gone

    def _store(self, key: Key, new: Object, kind: str) -> Object:
        live = self.objects.get(key)
        metadata = new["metadata"]
        if live is not None:
            if _without_version(live) == _without_version(new):
                return live
            if live.get("spec") != new.get("spec"):
                metadata = metadata | {"generation": metadata["generation"] + 1}
        new = {**new, "metadata": metadata | {"resourceVersion": str(next(self._serial))}}
        self.objects[key] = new
        self.past.setdefault(key, []).append((self._wall(), new))
        self._tell(key, kind, new)
        return new

    def _tell(self, key: Key, kind: str, found: Object) -> None:
        self.version = int(found["metadata"]["resourceVersion"])
        self.changes.setdefault(key[0], []).append((self.version, kind, found))
        for listener in self.listeners:
            listener(key[0], kind, found)


def _without_version(found: Object) -> Object:
    metadata = {name: value for name, value in found["metadata"].items() if name != "resourceVersion"}
    return {**found, "metadata": metadata}


def merge(live: Any, before: Any, sent: Any) -> Any:
    """Returns `live` after a server-side apply of `sent` by the manager that applied `before`."""
    if not isinstance(live, dict) or not isinstance(sent, dict):
        return sent
    known = before if isinstance(before, dict) else {}
    kept = {name: value for name, value in live.items() if name in sent or name not in known}
    return kept | {name: merge(live.get(name), known.get(name), value) for name, value in sent.items()}


def _merge_owners(live: Object, before: Object, sent: Object) -> list[Object]:
    """Returns the owner references, which are a map by uid: those of the manager's last apply go."""
    mine = {owner["uid"] for owner in before.get("ownerReferences", ())}
    new = {owner["uid"] for owner in sent.get("ownerReferences", ())}
    others = [owner for owner in live.get("ownerReferences", ()) if owner["uid"] not in mine | new]
    return [*others, *sent.get("ownerReferences", ())]


def owner_uids(found: Object) -> set[str]:
    return {owner["uid"] for owner in found["metadata"].get("ownerReferences") or ()}


def labelled(found: Object) -> bool:
    """Returns whether the operator's selector matches."""
    labels = found["metadata"].get("labels") or {}
    return labels.get(names.LABEL_MANAGED_BY) == names.MANAGER


def is_pod_of(pod: Object, job_uid: str) -> bool:
    """Returns whether the pod was created for the job with this uid."""
    env = pod["spec"]["containers"][0].get("env", ())
    return any(entry["name"] == names.ENV_JOB_UID and entry.get("value") == job_uid for entry in env)
