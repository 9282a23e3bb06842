"""Carrying out a plan: the actions in order, then one status write if the status is another, then the events."""

from __future__ import annotations

import logging
from typing import Any, NoReturn, Protocol

from dtj_contract import names
from dtj_core.plan.model import Action, Delete, Event, Nudge, Object, Plan
from dtj_operator import errors
from dtj_operator.kube import undeclared_fields
from dtj_operator.kube.client import Client
from dtj_operator.kube.observer import Observer
from dtj_operator.kube.resources import BY_KIND, JOB, POD, STATEFUL_SET

logger = logging.getLogger(__name__)

# Answers with a validation's status that somebody else has given, or that are not about what the job asks for.
BY_OTHERS = (
    "admission webhook",
    "AdmissionPolicy",  # Validating and Mutating
    "metadata.ownerReferences",  # a child of a deleted job of the same name that is still on its way out
)
NO_DRY_RUN = "does not support dry run"


class Rejected(Exception):
    """The API server refused a child. The planner is told, and puts it into a condition.

    `permanent`: the child is invalid as the job describes it, which ends a job that has never run. Everything else is tried
    again.
    """

    def __init__(self, message: str, *, permanent: bool) -> None:
        super().__init__(message)
        self.permanent = permanent


class Recorder(Protocol):
    async def record(self, job: Object, event: Event) -> None: ...


class PlanExecutor:
    """Executes plans against the Kubernetes API server."""

    def __init__(self, client: Client, observer: Observer, recorder: Recorder) -> None:
        self._client = client
        self._observer = observer
        self._recorder = recorder
        self._undeclared: frozenset[undeclared_fields.Path] = frozenset()
        """Fields of the status that the API server has refused, because its CRD is older: left out until the next start."""

    async def execute(self, job: Object, plan: Plan) -> Object | None:
        """Executes the plan. Returns the job after the status write, or None if no write was needed.

        Raises Rejected with the server's message, or a KubeError. Actions that were executed before stay executed,
        and the next try executes them again.
        """
        key = job["metadata"]["namespace"], job["metadata"]["name"]
        written: Object | None = None
        try:
            for action in plan.actions:
                await self._execute_action(job, action)
            gone = any(isinstance(action, Delete) and action.kind == names.KIND for action in plan.actions)
            status = undeclared_fields.without(plan.status, self._undeclared)
            if not gone and status and not same_status(status, job.get("status", {})):
                written = await self._write_status(job, status)
        except errors.Conflict:
            self._observer.invalidate(key)  # the plan was made from something that is old by now
            raise
        finally:
            if plan.actions or written is not None:
                self._observer.invalidate(key)
        for event in plan.events:
            await self._recorder.record(job, event)
        return written

    async def _execute_action(self, job: Object, action: Action) -> None:
        namespace = job["metadata"]["namespace"]
        if isinstance(action, Nudge):
            await self._nudge(namespace, action)
            return
        if isinstance(action, Delete):
            try:
                await self._client.delete(
                    BY_KIND[action.kind], namespace, action.name, uid=action.uid, grace_seconds=action.grace_seconds
                )
            except errors.ObjectNotFound:
                pass  # it is gone: that is what was wanted
            except errors.Conflict:
                logger.info("%s %s is another one by now, and stays", action.kind, action.name)
            else:
                logger.info("deleted %s %s", action.kind, action.name)
            return
        resource = BY_KIND[action.body["kind"]]
        try:
            if resource is STATEFUL_SET:
                await self._dry_run_pod(namespace, action.body)
                await self._confirm_version(job)
            if action.if_missing:
                await self._client.create(resource, namespace, action.body)
            else:
                await self._client.apply(resource, namespace, action.body)
        except errors.KubeError as error:
            if action.if_missing and isinstance(error, errors.Conflict):
                return  # it is there
            _raise_rejection(error, permanent=resource is STATEFUL_SET and is_permanent(error))
        logger.info("applied %s %s", resource.kind, action.body["metadata"]["name"])

    async def _nudge(self, namespace: str, action: Nudge) -> None:
        """Raises Rejected with the words that the StatefulSet controller gets, too, and puts into events of the set alone."""
        metadata = action.stateful_set["metadata"]
        patch = {"metadata": {"uid": metadata["uid"], "annotations": {names.ANNOTATION_NUDGED: action.time}}}
        try:
            await self._dry_run_pod(namespace, action.stateful_set)
            await self._client.merge(STATEFUL_SET, namespace, metadata["name"], patch)
        except (errors.ObjectNotFound, errors.Conflict):
            return  # it is gone, or another one
        except errors.KubeError as error:
            _raise_rejection(error, permanent=False)
        logger.info("woke the controller of StatefulSet %s, which has made too few pods", metadata["name"])

    async def _dry_run_pod(self, namespace: str, stateful_set: Object) -> None:
        """Would the pods be let in? The StatefulSet's admission doesn't look at its template with the pods' eyes.

        Pod security, quotas, limit ranges and field values are checked when a pod is created; the StatefulSet controller would
        be refused again and again, and tell nobody but its own events.
        """
        template = stateful_set["spec"]["template"]
        given = template.get("metadata") or {}
        # Of the template's metadata the StatefulSet controller takes these three. The name is one that no pod of the set has,
        # and the same at each try: the answer names it, and goes into the status.
        metadata = {key: given[key] for key in ("labels", "annotations", "finalizers") if key in given}
        metadata["name"] = stateful_set["metadata"]["name"] + "-dry-run"
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        try:
            await self._client.create(POD, namespace, pod, dry_run=True)
        except errors.Conflict:
            logger.debug("a pod has the name of the dry run: nothing was learned")
        except (errors.Invalid, errors.Forbidden) as error:
            may_not_try = isinstance(error, errors.Forbidden) and error.by_rbac
            if not may_not_try and NO_DRY_RUN not in error.message:
                raise
            # The set is made all the same: whether its pods are let in shows when its controller makes them.
            logger.warning("pods of %s can't be tried: %s", stateful_set["metadata"]["name"], error.message)

    async def _confirm_version(self, job: Object) -> None:
        """Raises Overtaken if the stored job is not the one that was planned on.

        A StatefulSet is the one child whose making starts a training. No lock of the server's covers its apply, so a plan that
        another operator has overtaken (it has ended the job and removed the StatefulSet meanwhile) is dropped here.
        """
        metadata = job["metadata"]
        version = metadata.get("resourceVersion")
        if version is None:
            return
        try:
            stored = await self._client.get(JOB, metadata["namespace"], metadata["name"])
        except errors.ObjectNotFound as error:
            raise errors.Overtaken("the job was deleted meanwhile", status=409) from error
        if (stored["metadata"]["uid"], stored["metadata"]["resourceVersion"]) != (metadata["uid"], version):
            raise errors.Overtaken("the job was changed meanwhile", status=409)

    async def _write_status(self, job: Object, status: Object) -> Object:
        metadata = job["metadata"]
        # The uid keeps a status from another job that has got the name meanwhile. The resourceVersion keeps a late status from
        # overwriting a newer one: the API server answers 409, and the job is read and planned again.
        known = ("name", "namespace", "uid", "resourceVersion")
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {key: metadata[key] for key in known if key in metadata},
            "status": without_none(status),
        }
        try:
            return await self._client.apply(JOB, metadata["namespace"], body, subresource="status")
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


def _raise_rejection(error: errors.KubeError, *, permanent: bool) -> NoReturn:
    """Raises Rejected if `error` is about the object, else `error`."""
    if not is_rejection(error):
        raise error
    raise Rejected(error.message, permanent=permanent) from error


def is_rejection(error: errors.KubeError) -> bool:
    """Whether the API server has looked at the object and does not take it, now or ever.

    No answer, an unknown login, a server that is too busy and a plan that was overtaken say nothing about the object.
    """
    if isinstance(error, errors.Transient):
        return error.status >= 500
    return not isinstance(error, errors.NotAuthenticated | errors.Overtaken)


def is_permanent(error: errors.KubeError) -> bool:
    """Whether the API server's own validation has found the object invalid, so that the same object is so tomorrow.

    Every other refusal may pass by itself or by somebody else's work: a quota, a limit range, a webhook, a policy, a right,
    a service account that is still to come.
    """
    return isinstance(error, errors.Invalid) and not any(mark in error.message for mark in BY_OTHERS)


def same_status(one: Object, other: Object) -> bool:
    """Equal but for the order of the conditions, for keys without a value, which the API server drops, and for the time."""
    return bool(_canonical(one) == _canonical(other))


def _canonical(status: Object) -> Any:
    status = without_none(status)
    status.pop("lastUpdateTime", None)  # says when the rest was written
    if "conditions" in status:
        status["conditions"] = sorted(status["conditions"], key=lambda condition: str(condition["type"]))
    return status


def without_none(value: Any) -> Any:
    """A copy without the keys whose value is None."""
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [without_none(item) for item in value]
    return value
