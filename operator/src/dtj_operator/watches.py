"""kopf as the shell: its watches tell which job to look at, and nothing else.

Only `kopf.on.event` is used. It writes nothing on the objects that it watches and asks for no finalizer; what it brings
is taken as "something about this job has changed", never as what there is.
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
QUIET_SECONDS = 70.0  # of a watch: the API server sends a bookmark every minute

logger = logging.getLogger(__name__)


class Backoffs:
    """Seconds between kopf's tries, without end and to be gone through again and again.

    When kopf's own list is at its end it ends the process, so a long outage of the API server would be a crash loop.
    """

    def __iter__(self) -> Iterator[float]:
        yield from (1.0, 2.0, 4.0, 8.0, 15.0)
        while True:
            yield 30.0


class _NoDiffs(kopf.DiffBaseStorage):
    """For every event kopf works out what has changed since it last wrote that on the object. It has no use for it here,
    and copying each pod three times for it was most of the operator's work."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        return None

    def store(self, **_: Any) -> None:
        """Nothing is ever written on an object."""


class _NoProgress(kopf.ProgressStorage):
    """As above, of handlers that go on over several events: there are none."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        """Nothing is ever written on an object."""

    def purge(self, **_: Any) -> None:
        """Nor anything removed."""

    def touch(self, **_: Any) -> None:
        """Nor changed."""

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        return essence


class WatchState:
    """What the watches have told, as digests: enough to leave out what says nothing new, such as our own status writes."""

    def __init__(self, wake: Callable[[Key], None], count: Callable[[str], None]) -> None:
        self._wake = wake
        self._count = count
        self._jobs: dict[Key, str] = {}
        self._children: dict[str, tuple[Key, str]] = {}

    def on_job_event(self, kind: str | None, job: Object) -> None:
        """A job was added, changed (`kind` ADDED, MODIFIED, or None in the first list) or DELETED."""
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
        """The same for a StatefulSet or a pod."""
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
        """Forget what belongs to no job of this list: after a re-list kopf doesn't tell what is gone."""
        keys = {job_key(job) for job in jobs}
        self._jobs = {key: digest for key, digest in self._jobs.items() if key in keys}
        self._children = {uid: known for uid, known in self._children.items() if known[0] in keys}

    def unobserved(self, jobs: Iterable[Object]) -> set[tuple[Key, str]]:
        """Which of these jobs are in a state that no watch has told of (yet)."""
        listed = {(job_key(job), job_digest(job)) for job in jobs}
        return listed - set(self._jobs.items())


def job_digest(job: Object) -> str:
    """Differs where a person has changed the job, or deleted it; not where its status was written."""
    metadata = job["metadata"]
    return _digest(metadata["uid"], metadata.get("generation"), metadata.get("deletionTimestamp"), metadata.get("labels"))


def child_digest(child: Object) -> str:
    """Differs where a reconcile would see something else: what is left out is written by the kubelet every few seconds."""
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
    """Our handlers, on a registry of our own: kopf's global one stays empty."""
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
    """kopf's settings where its own are not ours."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True  # would need rights on CRDs and namespaces; the CRD is waited for at the start
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
    """An event loop's exception handler: a watch that kopf leaves open when it is told to stop is no error of ours.

    asyncio closes such a generator and the ones inside it at the same time, as the last thing that the loop does, and calls
    it an error that one of them was being closed already. At debug level it can still be seen.
    """
    if "asyncgen" in context:
        logger.debug("%s", context["message"], exc_info=context.get("exception"))
    else:
        loop.default_exception_handler(context)


async def watch(
    watches: WatchState, login: Login, namespaces: Sequence[str], stop: asyncio.Event, started: Callable[[], None]
) -> None:
    """Watch until `stop` is set. Raises ShellEnded if kopf ends before that. `started` is called when kopf has begun."""
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
    except Exception as error:  # whatever kopf ends of: without watches we end, and are started again
        raise ShellEnded(f"kopf's watches ended by themselves: {error!r}") from error
    if not stop.is_set():
        raise ShellEnded("kopf's watches ended by themselves")
