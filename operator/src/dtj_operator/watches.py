"""kopf as the shell: its watches trigger reconciles, and do nothing else.

Only `kopf.on.event` is used: it writes nothing on the objects that it watches and adds no
finalizer. An event only means "something about this job has changed"; its object is never
taken for the current state.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import kopf

from dtj_contract import names
from dtj_core.plan.model import Object
from dtj_operator.errors import ShellEnded
from dtj_operator.kube.login import Login
from dtj_operator.kube.observer import Key
from dtj_operator.kube.resources import POD, STATEFUL_SET, job_key, job_selector

REQUEST_SECONDS = 30.0
CONNECT_SECONDS = 10.0
QUIET_SECONDS = 70.0  # the API server sends a bookmark every minute

logger = logging.getLogger(__name__)


class Backoffs:
    """The seconds between kopf's retries: an endless sequence that can be iterated repeatedly.

    When kopf's own list is exhausted, kopf ends the process, so a long outage of the API server
    would become a crash loop.
    """

    def __iter__(self) -> Iterator[float]:
        yield from (1.0, 2.0, 4.0, 8.0, 15.0)
        while True:
            yield 30.0


class _NoDiffs(kopf.DiffBaseStorage):
    """Disables kopf's diffs.

    For every event kopf computes what has changed since it last wrote the essence on the object.
    Nothing here needs it, and copying each pod three times for it was most of the operator's work.
    """

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        return None

    def store(self, **_: Any) -> None:
        """Stores nothing, so that no object is written."""


class _NoProgress(kopf.ProgressStorage):
    """Disables kopf's record of handlers that span several events, because there are none."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        """Stores nothing, so that no object is written."""

    def purge(self, **_: Any) -> None:
        """Removes nothing."""

    def touch(self, **_: Any) -> None:
        """Changes nothing."""

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        return essence


class WatchState:
    """The last observed state of each object, as a digest.

    A digest is enough to skip events that change nothing for the planner, such as the operator's
    own status writes.
    """

    def __init__(self, wake: Callable[[Key], None], count: Callable[[str], None]) -> None:
        self._wake = wake
        self._count = count
        self._jobs: dict[Key, str] = {}
        self._children: dict[str, tuple[Key, str]] = {}

    def on_job_event(self, kind: str | None, job: Object) -> None:
        """Handles a job event. `kind` is ADDED, MODIFIED, DELETED, or None in the first list."""
        self._count(names.PLURAL)
        key, digest = job_key(job), job_digest(job)
        if kind == "DELETED":
            self._jobs.pop(key, None)
        elif self._jobs.get(key) == digest:
            return
        else:
            self._jobs[key] = digest
        self._wake(key)

    def on_child_event(self, plural: str, kind: str | None, child: Object) -> None:
        """Handles an event of a StatefulSet or a pod, with `kind` as in `on_job_event`."""
        self._count(plural)
        metadata = child["metadata"]
        name = metadata.get("labels", {}).get(names.LABEL_JOB)
        if name is None:
            return
        key = (metadata["namespace"], name)
        uid, digest = metadata["uid"], child_digest(child)
        if kind == "DELETED":
            self._children.pop(uid, None)
        elif self._children.get(uid) == (key, digest):
            return
        else:
            self._children[uid] = key, digest
        self._wake(key)

    def keep_only(self, jobs: Iterable[Object]) -> None:
        """Drops whatever belongs to none of these jobs, because kopf reports no deletions after a re-list."""
        keys = {job_key(job) for job in jobs}
        self._jobs = {key: digest for key, digest in self._jobs.items() if key in keys}
        self._children = {uid: known for uid, known in self._children.items() if known[0] in keys}

    def unobserved(self, jobs: Iterable[Object]) -> set[tuple[Key, str]]:
        """Returns the jobs whose listed state no watch has reported (yet), each with its digest."""
        listed = {(job_key(job), job_digest(job)) for job in jobs}
        return listed - set(self._jobs.items())


def job_digest(job: Object) -> str:
    """Returns a digest that changes when a person edits or deletes the job.

    A write of the job's status does not change it.
    """
    metadata = job["metadata"]
    return _digest(
        metadata["uid"], metadata.get("generation"), metadata.get("deletionTimestamp"), metadata.get("labels")
    )


def child_digest(child: Object) -> str:
    """Returns a digest that changes when a reconcile would observe something new.

    The fields that are left out are those that the kubelet writes every few seconds.
    """
    metadata, status = child["metadata"], child.get("status", {})
    conditions = [{k: c.get(k) for k in ("type", "status", "reason")} for c in status.get("conditions", [])]
    return _digest(
        metadata.get("generation"),
        metadata.get("deletionTimestamp"),
        metadata.get("annotations") if child.get("kind") == STATEFUL_SET.kind else None,
        child.get("spec", {}).get("nodeName"),
        conditions,
        {key: value for key, value in status.items() if key != "conditions"},
    )


def _digest(*parts: Any) -> str:
    return json.dumps(parts, sort_keys=True, separators=(",", ":"))


def registry(watches: WatchState, login: Login) -> kopf.OperatorRegistry:
    """Returns our handlers on a registry of their own: kopf's global registry stays empty."""
    ours = kopf.OperatorRegistry()

    @kopf.on.login(registry=ours)
    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        return await login.kopf_connection()

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=ours)
    async def on_job(event: kopf.RawEvent, **_: Any) -> None:
        watches.on_job_event(event["type"], dict(event["object"]))

    @kopf.on.event("apps", "v1", STATEFUL_SET.plural, registry=ours)
    async def on_stateful_set(event: kopf.RawEvent, **_: Any) -> None:
        watches.on_child_event(STATEFUL_SET.plural, event["type"], dict(event["object"]))

    @kopf.on.event("", "v1", POD.plural, registry=ours)
    async def on_pod(event: kopf.RawEvent, **_: Any) -> None:
        watches.on_child_event(POD.plural, event["type"], dict(event["object"]))

    return ours


def kopf_settings() -> kopf.OperatorSettings:
    """Returns kopf's settings, changed where its defaults do not fit."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    # Scanning would need rights on CRDs and namespaces. The operator waits for its CRD at the
    # start.
    settings.scanning.disabled = True
    settings.networking.request_timeout = REQUEST_SECONDS
    settings.networking.connect_timeout = settings.watching.connect_timeout = CONNECT_SECONDS
    settings.watching.inactivity_timeout = QUIET_SECONDS
    settings.networking.error_backoffs = Backoffs()
    settings.watching.chunk_size = 500
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.persistence.progress_storage = _NoProgress()
    settings.process.ultimate_exiting_timeout = None
    for group, plural in (("apps", STATEFUL_SET.plural), ("", POD.plural)):
        settings.watching.label_selectors[(group, "v1", plural)] = job_selector()
    return settings


def ignore_unclosed_watches(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handles exceptions of the event loop, and ignores watches that kopf leaves open when it stops.

    asyncio closes such a generator and the ones inside it at the same time, as the last action of
    the loop, and reports an error because one of them was being closed already. The message stays
    visible at debug level.
    """
    if "asyncgen" in context:
        logger.debug("%s", context["message"], exc_info=context.get("exception"))
    else:
        loop.default_exception_handler(context)


async def watch(
    watches: WatchState, login: Login, namespaces: Sequence[str], stop: asyncio.Event, started: Callable[[], None]
) -> None:
    """Watches until `stop` is set. Calls `started` once kopf has started.

    Raises ShellEnded if kopf ends before `stop` is set.
    """
    before = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(
        registry=registry(watches, login),
        settings=kopf_settings(),
        clusterwide=not namespaces,
        namespaces=list(namespaces),
        standalone=True,
        stop_flag=stop,
    )
    started()
    try:
        await kopf.run_tasks(tasks, ignored=before)
    except Exception as error:
        # Without watches the operator must end, so that the kubelet restarts it.
        raise ShellEnded(f"kopf's watches ended unexpectedly: {error!r}") from error
    if not stop.is_set():
        raise ShellEnded("kopf's watches ended unexpectedly")
