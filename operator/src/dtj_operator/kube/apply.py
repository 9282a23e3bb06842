"""Carrying out a plan: the actions in order, then one status write if the status is another, then the events."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from dtj_agent import names
from dtj_operator import errors
from dtj_operator.kube.client import Client
from dtj_operator.kube.observe import Observer
from dtj_operator.kube.resources import BY_KIND, JOB, POD, STATEFUL_SET
from dtj_operator.plan.model import Action, Delete, Event, Nudge, Object, Observed, Plan

logger = logging.getLogger(__name__)

# Refusals that pass by themselves, or by somebody's next `kubectl apply`; all others are about the job as it is written.
PASSING = (
    "exceeded quota",
    "because it is being terminated",
    "not yet ready to handle request",  # an admission plugin that still starts
    "not found",  # service account, runtime class: may come a moment later
    "no PriorityClass with name",
    "does not support dry run",
)
NO_WEBHOOK = "failed calling webhook"  # of somebody else's, that does not answer: a 500


class Rejected(Exception):
    """The API server refused a child. Not an error of ours: the planner is told, and says so; `for_good`: it ends the job."""

    def __init__(self, message: str, *, for_good: bool) -> None:
        super().__init__(message)
        self.for_good = for_good


class Recorder(Protocol):
    async def record(self, job: Object, event: Event) -> None: ...


class World:
    """A Kubernetes API server as the planner's world (dtj_operator.plan.model.World)."""

    def __init__(self, client: Client, observer: Observer, recorder: Recorder) -> None:
        self._client = client
        self._observer = observer
        self._recorder = recorder

    async def observe(self, job: Object) -> Observed:
        return await self._observer.observe(job)

    async def apply(self, job: Object, plan: Plan) -> None:
        """Raises Rejected with the server's message, or an KubeError; what was done before stays done, and is done again."""
        await self.carry_out(job, plan)

    async def carry_out(self, job: Object, plan: Plan) -> Object | None:
        """`apply`; returns the job as it is after the status write, None if there was no need of one."""
        key = job["metadata"]["namespace"], job["metadata"]["name"]
        written: Object | None = None
        try:
            for action in plan.actions:
                await self._act(key[0], action)
            gone = any(isinstance(action, Delete) and action.kind == names.KIND for action in plan.actions)
            if not gone and plan.status and not same_status(plan.status, job.get("status", {})):
                written = await self._write_status(job, plan.status)
        finally:
            if plan.actions or written is not None:
                self._observer.forget(key)
        for event in plan.events:
            await self._recorder.record(job, event)
        return written

    async def _act(self, namespace: str, action: Action) -> None:
        if isinstance(action, Nudge):
            await self._nudge(namespace, action)
            return
        if isinstance(action, Delete):
            try:
                await self._client.delete(
                    BY_KIND[action.kind], namespace, action.name, uid=action.uid, grace_seconds=action.grace_seconds
                )
            except errors.NotFound:
                pass  # it is gone: that is what was wanted
            except errors.Conflict:
                logger.info("%s %s is another one by now, and stays", action.kind, action.name)
            else:
                logger.info("deleted %s %s", action.kind, action.name)
            return
        resource = BY_KIND[action.body["kind"]]
        try:
            if resource is STATEFUL_SET:
                await self._try_pod(namespace, action.body)
            if action.if_missing:
                await self._client.create(resource, namespace, action.body)
            else:
                await self._client.apply(resource, namespace, action.body)
        except errors.Conflict:
            if not action.if_missing:
                raise
            return  # it is there
        except (errors.Invalid, errors.Forbidden) as error:
            raise Rejected(error.message, for_good=for_good(error)) from error
        except errors.Transient as error:
            if NO_WEBHOOK not in error.message:
                raise
            raise Rejected(error.message, for_good=False) from error
        logger.info("applied %s %s", resource.kind, action.body["metadata"]["name"])

    async def _nudge(self, namespace: str, action: Nudge) -> None:
        """Raises Rejected with the words that the StatefulSet controller gets, too, and puts into events of the set alone."""
        metadata, template = action.stateful_set["metadata"], action.stateful_set["spec"]["template"]
        given = template.get("metadata") or {}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {key: given[key] for key in ("labels", "annotations") if given.get(key)}
            | {"name": metadata["name"] + "-dry-run"},
            "spec": template["spec"],
        }
        try:
            await self._client.create(POD, namespace, pod, dry_run=True)
        except errors.Conflict:
            logger.debug("a pod has the name of the dry run: nothing was learned")
        except (errors.Invalid, errors.Forbidden) as error:
            by_rbac = isinstance(error, errors.Forbidden) and error.by_rbac
            if not by_rbac and "does not support dry run" not in error.message:
                raise Rejected(error.message, for_good=False) from error
        patch = {"metadata": {"uid": metadata["uid"], "annotations": {names.ANNOTATION_NUDGED: action.time}}}
        try:
            await self._client.merge(STATEFUL_SET, namespace, metadata["name"], patch)
        except (errors.NotFound, errors.Conflict):
            return  # it is gone, or another one
        logger.info("woke the controller of StatefulSet %s, which has made too few pods", metadata["name"])

    async def _try_pod(self, namespace: str, stateful_set: Object) -> None:
        """Would the pods be let in? The StatefulSet's admission doesn't look at its template with the pods' eyes.

        Pod security, limit ranges and field values are checked when a pod is created; the StatefulSet controller would be
        refused again and again, and tell nobody but its own events.
        """
        template = stateful_set["spec"]["template"]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            # A name that no pod of the set has, and the same at each try: the answer names it, and goes into the status.
            "metadata": template.get("metadata", {}) | {"name": stateful_set["metadata"]["name"] + "-dry-run"},
            "spec": template["spec"],
        }
        try:
            await self._client.create(POD, namespace, pod, dry_run=True)
        except errors.Conflict:
            logger.debug("a pod has the name of the dry run: nothing was learned")
        except (errors.Invalid, errors.Forbidden) as error:
            if for_good(error):
                raise
            # The set may be made all the same: its controller tries until the quota, or the service account, is there.
            logger.warning("pods of %s would be refused for now: %s", stateful_set["metadata"]["name"], error.message)

    async def _write_status(self, job: Object, status: Object) -> Object:
        metadata = job["metadata"]
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            # With the uid a status can't land on another job that has got the name meanwhile.
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]},
            "status": without_none(status),
        }
        try:
            return await self._client.apply(JOB, metadata["namespace"], body, subresource="status")
        except errors.Invalid as error:
            if "not declared in schema" not in error.message:
                raise
            hint = "; the CRD is older than the operator: kubectl apply --server-side -f crds/"
            raise errors.Invalid(error.message + hint, status=error.status, reason=error.reason) from error


def for_good(error: errors.Invalid | errors.Forbidden) -> bool:
    """Is it the object that is refused, and would be again? Not where RBAC refuses us, or time will help."""
    if isinstance(error, errors.Forbidden) and error.by_rbac:
        return False
    return not any(mark in error.message for mark in PASSING)


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
