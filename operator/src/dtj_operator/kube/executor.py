"""Executes a plan: the actions in order, then one status write if the status changed, then the events."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

from dtj_contract import names
from dtj_core.plan.job import is_owned
from dtj_core.plan.model import Action, Annotate, Delete, Event, Nudge, Object, PatchStatus, Plan
from dtj_operator import errors
from dtj_operator.kube import undeclared_fields
from dtj_operator.kube.cache.cache import Cache
from dtj_operator.kube.client import Client
from dtj_operator.kube.observer import Observer
from dtj_operator.kube.rejections import Rejected, is_permanent, raise_rejection
from dtj_operator.kube.resources import (
    BY_KIND,
    CLAIM,
    JOB,
    NETWORK_POLICY,
    POD,
    POD_GROUPS,
    SECRET,
    SERVICE,
    STATEFUL_SET,
    WORKLOAD,
    Resource,
    job_key,
    resource_of,
)

logger = logging.getLogger(__name__)

# A create costs the API server 1 ms of CPU less than the apply that makes the same object. Created objects keep the
# fields that a later apply omits, so the children whose fields come and go are applied from the beginning.
CREATED_FIRST = (SECRET, NETWORK_POLICY)
NO_DRY_RUN = "does not support dry run"


class Recorder(Protocol):
    async def record(self, job: Object, event: Event) -> None: ...


class PlanExecutor:
    """Executes plans against the Kubernetes API server, and puts its answers into the cache.

    The next plan therefore never follows from what this one has outdated, however late the watches are.
    """

    def __init__(self, client: Client, cache: Cache, observer: Observer, recorder: Recorder) -> None:
        self._client = client
        self._cache = cache
        self._observer = observer
        self._recorder = recorder
        self._undeclared: frozenset[undeclared_fields.Path] = frozenset()
        """Fields of the status that the API server rejected because its CRD is older.

        The fields are omitted until the operator restarts.
        """

    async def execute(self, job: Object, plan: Plan) -> Object | None:
        """Executes the plan.

        Returns the job after the status write, or None if no write was needed.

        Raises Rejected with the server's message, or KubeError. Actions that were executed before
        the error stay executed, and the next try repeats them.
        """
        written: Object | None = None
        for action in plan.actions:
            await self._execute_action(job, action)
        gone = any(isinstance(action, Delete) and action.kind == names.KIND for action in plan.actions)
        status = undeclared_fields.without(plan.status, self._undeclared)
        if not gone and status and not same_status(status, job.get("status", {})):
            with self._cache.status_write(job_key(job)) as answered:
                written = await self._write_status(job, status)
                answered(written)
        for event in plan.events:
            await self._recorder.record(job, event)
        return written

    async def _execute_action(self, job: Object, action: Action) -> None:
        namespace = job["metadata"]["namespace"]
        if isinstance(action, Nudge):
            await self._nudge(namespace, action)
            return
        if isinstance(action, Annotate):
            await self._annotate(namespace, action.stateful_set, action.annotations)
            return
        if isinstance(action, Delete):
            await self._delete(namespace, action)
            return
        if isinstance(action, PatchStatus):
            await self._patch_status(namespace, action)
            return
        resource = resource_of(action.body)
        body = action.body
        try:
            if action.pods_of is not None:
                admitted = await self._dry_run_pod(namespace, action.pods_of)
                body = body | {"spec": body["spec"] | {"priority": (admitted.get("spec") or {}).get("priority", 0)}}
            if resource is STATEFUL_SET:
                if action.adds_pods:
                    await self._dry_run_pod(namespace, action.body)
                await self._confirm_version(job)
            if action.if_missing:
                created = _for_create(body) if resource in CREATED_FIRST else body
                applied = await self._client.create(resource, namespace, created)
            else:
                applied = await self._apply(job, resource, body)
        except errors.KubeError as error:
            if action.if_missing and isinstance(error, errors.Conflict):
                if resource is WORKLOAD and self._cache.workload(job_key(job)) is None:
                    # Of an earlier plan, and the watch is late. Or no watch ever shows it, because it lacks our label.
                    self._observer.add_unlabelled(resource, job_key(job))
                    raise errors.Overtaken("a Workload of this name exists", status=409) from error
                return  # already created
            is_denied = action.if_missing and resource in (CLAIM, SECRET) and isinstance(error, errors.Forbidden)
            if is_denied and await self._exists(resource, job, body):
                return  # already created, and the quota is full
            if resource in POD_GROUPS and isinstance(error, errors.ObjectNotFound):
                missing = f"spec.gang: the API server has no PodGroup of {resource.api_version}"
                raise Rejected(
                    f"{missing}: install its scheduler's CRDs, or remove spec.gang", permanent=False
                ) from error
            checks_pods = resource is STATEFUL_SET or action.pods_of is not None
            raise_rejection(error, permanent=checks_pods and is_permanent(error))
        self._cache.answer(resource, applied)
        logger.info("applied %s %s", resource.kind, action.body["metadata"]["name"])

    async def _apply(self, job: Object, resource: Resource, body: Object) -> Object:
        """Applies a child, and takes nothing from somebody else.

        Raises Overtaken if an object of another owner has the name.
        """
        key, uid = job_key(job), job["metadata"]["uid"]
        if resource in CREATED_FIRST:
            try:
                return await self._client.create(resource, key[0], _for_create(body))
            except (errors.Conflict, errors.Forbidden):
                # Of an earlier run, perhaps: a full quota refuses a create before the API server looks for the name.
                pass
        if resource not in (STATEFUL_SET, SERVICE):
            return await self._client.apply(resource, key[0], body)
        known = self._cache.child(resource, key)
        if known is not None:
            if not is_owned(known, uid):
                raise errors.Overtaken(f"a {resource.kind} of another owner was created meanwhile", status=409)
            return await self._client.apply(resource, key[0], body)
        try:
            # No object of that name is known. If there is one, it lacks the operator's label.
            return await self._client.apply(resource, key[0], body, force=False)
        except errors.Conflict as error:
            try:
                found = await self._client.get(resource, *key)
            except errors.ObjectNotFound:
                raise errors.Overtaken(f"a {resource.kind} of this name was deleted meanwhile", status=409) from error
            if is_owned(found, uid):
                return await self._client.apply(resource, key[0], body)
            self._observer.add_unlabelled(resource, key)
            raise errors.Overtaken(f"a {resource.kind} of another owner has the name", status=409) from error

    async def _exists(self, resource: Resource, job: Object, body: Object) -> bool:
        """Returns whether an object of this kind and name exists, as far as the operator may know."""
        namespace, name = job["metadata"]["namespace"], body["metadata"]["name"]
        try:
            if resource is SECRET:
                await self._client.merge(resource, namespace, name, {})  # RBAC grants no get, and this changes nothing
            else:
                await self._client.get(resource, namespace, name)
        except (errors.ObjectNotFound, errors.Forbidden):
            return False
        return True

    async def _delete(self, namespace: str, action: Delete) -> None:
        resource = BY_KIND[action.kind]
        try:
            answer = await self._client.delete(
                resource, namespace, action.name, uid=action.uid, grace_seconds=action.grace_seconds
            )
        except errors.ObjectNotFound:
            self._cache.deleted(resource, namespace, action.name, action.uid)
            return
        except errors.Conflict:
            logger.info("%s %s was not deleted: another object has its name now", action.kind, action.name)
            return
        if answer.get("metadata", {}).get("uid") == action.uid:
            self._cache.answer(resource, answer)  # it terminates
        else:
            self._cache.deleted(resource, namespace, action.name, action.uid)
        logger.info("deleted %s %s", action.kind, action.name)

    async def _patch_status(self, namespace: str, action: PatchStatus) -> None:
        """Patches a status that another controller writes, too. Raises Conflict if it did meanwhile."""
        metadata = action.observed["metadata"]
        resource = BY_KIND[action.observed["kind"]]
        known = {key: metadata[key] for key in ("uid", "resourceVersion")}
        patch = {"metadata": known, "status": action.status}
        try:
            merged = await self._client.merge(resource, namespace, metadata["name"], patch, subresource="status")
        except errors.ObjectNotFound:
            self._cache.deleted(resource, namespace, metadata["name"], metadata["uid"])
            return
        self._cache.answer(resource, merged)
        logger.info("patched the status of %s %s", resource.kind, metadata["name"])

    async def _nudge(self, namespace: str, action: Nudge) -> None:
        """Wakes the StatefulSet controller.

        Raises Rejected with the message that the controller receives, too, and reports in events of
        the StatefulSet only.
        """
        try:
            await self._dry_run_pod(namespace, action.stateful_set)
        except (errors.ObjectNotFound, errors.Conflict):
            return  # the namespace terminates
        except errors.KubeError as error:
            raise_rejection(error, permanent=False)
        name = action.stateful_set["metadata"]["name"]
        if await self._annotate(namespace, action.stateful_set, {names.ANNOTATION_NUDGED: action.time}):
            logger.info("woke the controller of StatefulSet %s, which has created too few pods", name)

    async def _annotate(self, namespace: str, stateful_set: Object, annotations: Mapping[str, str]) -> bool:
        """Writes annotations of this very StatefulSet. Returns False if it is gone."""
        metadata = stateful_set["metadata"]
        patch = {"metadata": {"uid": metadata["uid"], "annotations": dict(annotations)}}
        try:
            merged = await self._client.merge(STATEFUL_SET, namespace, metadata["name"], patch)
        except (errors.ObjectNotFound, errors.Conflict):
            return False  # deleted, or replaced by another
        except errors.KubeError as error:
            raise_rejection(error, permanent=False)
        self._cache.answer(STATEFUL_SET, merged)
        return True

    async def _dry_run_pod(self, namespace: str, stateful_set: Object) -> Object:
        """Creates a pod of the StatefulSet as a dry run, to learn whether its pods would be admitted.

        Returns the pod as the API server would store it; {} if it could not be tried.

        Pod security, quotas, limit ranges and field values are checked when a pod is created, not
        when its StatefulSet is. The StatefulSet controller would be rejected again and again, and
        report it in its own events only.
        """
        template = stateful_set["spec"]["template"]
        given = template.get("metadata") or {}
        # The StatefulSet controller copies these three fields of the template's metadata. The name
        # is one that no pod of the set has, and is stable, because the response with it goes into
        # the status.
        metadata = {key: given[key] for key in ("labels", "annotations", "finalizers") if key in given}
        metadata["name"] = stateful_set["metadata"]["name"] + "-dry-run"
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        try:
            return await self._client.create(POD, namespace, pod, dry_run=True)
        except errors.Conflict:
            logger.debug("a pod has the name of the dry run, so the dry run proves nothing")
        except (errors.Invalid, errors.Forbidden) as error:
            may_not_try = isinstance(error, errors.Forbidden) and error.by_rbac
            if not may_not_try and NO_DRY_RUN not in error.message:
                raise
            # Create the StatefulSet nevertheless: its controller will show whether its pods are admitted.
            logger.warning(
                "dry run of a pod of %s is not possible: %s", stateful_set["metadata"]["name"], error.message
            )
        return {}

    async def _confirm_version(self, job: Object) -> None:
        """Raises Overtaken if the stored job is not the one that was planned on.

        A StatefulSet is the only child whose creation starts a training. No lock of the API server
        covers its apply, so a plan is dropped here if another operator has overtaken it (has ended
        the job and deleted the StatefulSet meanwhile). A read without a version is of the newest
        one. A dry run of a status write would ask the same, at five times the cost.
        """
        metadata = job["metadata"]
        if metadata.get("resourceVersion") is None:
            return
        try:
            newest = await self._client.get(JOB, metadata["namespace"], metadata["name"])
        except errors.ObjectNotFound as error:
            raise errors.Overtaken("the job was deleted meanwhile", status=409) from error
        if any(newest["metadata"][key] != metadata[key] for key in ("uid", "resourceVersion")):
            raise errors.Overtaken("the job was changed meanwhile", status=409)

    async def _write_status(self, job: Object, status: Object) -> Object:
        body = _status_body(job, without_none(status))
        try:
            return await self._client.apply(JOB, job["metadata"]["namespace"], body, subresource="status")
        except errors.Invalid as error:
            if "not declared in schema" not in error.message:
                raise
            hint = "the CRD is older than the operator: kubectl apply --server-side -f crds/, and restart the operator"
            found = undeclared_fields.named(error.message) - self._undeclared
            if not found:
                raise errors.Invalid(f"{error.message}; {hint}", status=error.status, reason=error.reason) from error
            logger.warning("status is written without %s; %s", ", ".join(sorted(map(".".join, found))), hint)
            self._undeclared |= found
            return await self._write_status(job, undeclared_fields.without(status, self._undeclared))


def _for_create(child: Object) -> Object:
    """Returns `child` for a create, which has another field manager than our applies.

    A later job of this name may apply its own child before this one is garbage-collected. That apply
    can't remove an owner reference of another manager, and an object with two controllers is
    rejected: so this owner is no controller.
    """
    metadata = child["metadata"]
    owners = [owner | {"controller": False} for owner in metadata.get("ownerReferences") or ()]
    return child | {"metadata": metadata | ({"ownerReferences": owners} if owners else {})}


def _status_body(job: Object, status: Object) -> Object:
    """Returns the body of a status apply that only this job, in this version, takes.

    The uid protects another job that has the same name by now. The resourceVersion protects a newer
    status from a late one: the API server answers 409, and the job is planned again.
    """
    metadata = job["metadata"]
    known = ("name", "namespace", "uid", "resourceVersion")
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {key: metadata[key] for key in known if key in metadata},
        "status": status,
    }


def same_status(one: Object, other: Object) -> bool:
    """Returns whether both are equal but for lastUpdateTime and the order of the conditions.

    Keys without a value don't count either, because the API server drops them.
    """
    fields = (one.keys() | other.keys()) - {"lastUpdateTime"}  # the time of the write itself
    return all(_same_field(name, one.get(name), other.get(name)) for name in fields)


def _same_field(name: str, one: Any, other: Any) -> bool:
    if one == other:
        return True
    first, second = without_none(one), without_none(other)
    if name == "conditions":
        return sorted(first or (), key=_kind_of) == sorted(second or (), key=_kind_of)
    return bool(first == second)


def _kind_of(condition: Object) -> str:
    return str(condition["type"])


def without_none(value: Any) -> Any:
    """Returns a copy without the keys whose value is None."""
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [without_none(item) for item in value]
    return value
