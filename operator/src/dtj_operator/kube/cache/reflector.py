"""Keeps one table of the store true: lists, watches, and lists again where the watch has a gap."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Protocol

from dtj_core.plan.model import Object
from dtj_operator import errors
from dtj_operator.kube.cache.reflector_state import ReflectorState
from dtj_operator.kube.cache.store import Key, Table
from dtj_operator.kube.client import Client
from dtj_operator.kube.resources import JOB

# Parsing a page of pods must not keep the event loop from its other work.
PAGE = 100
# A watch is asked for again after this time, plus up to as much again, so that it moves to another
# API server at last.
WATCH_SECONDS = 300.0
# An optional kind that is not served is looked for this often.
NOT_SERVED_SECONDS = 15.0
# The API server sends a bookmark every minute. A watch without one is dead, whatever TCP believes.
QUIET_SECONDS = 90.0

logger = logging.getLogger(__name__)


class ReflectorObserver(Protocol):
    """Receives the measurements."""

    def watch_event(self, plural: str) -> None: ...

    def listed(self, plural: str) -> None: ...

    def watch_failed(self, plural: str) -> None: ...


class Reflector:
    """Lists and watches one kind in one scope: a namespace, or None for all of them."""

    def __init__(
        self,
        client: Client,
        table: Table,
        scope: str | None,
        changed: Callable[[Table, set[Key]], None],
        observer: ReflectorObserver,
        *,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._client = client
        self._table = table
        self._kind = table.kind
        self._scope = scope
        self._changed = changed
        self._observer = observer
        self._jitter = jitter
        self.state = ReflectorState()
        self.listed = asyncio.Event()
        """Set once the first list is complete."""
        self.alive = 0.0
        """By the clock of the event loop: when the reflector last made a step, be it a failed one."""

    @staticmethod
    def _clock() -> float:
        return asyncio.get_running_loop().time()

    async def run(self) -> None:
        """Runs until cancelled. Raises NotServed if the CRD is deleted."""
        while True:
            self.alive = began = self._clock()
            try:
                if self.state.version is None:
                    await self._list()
                    continue
                await self._watch()
                self.state.ended(self._clock() - began)
            except errors.Gone as error:
                logger.info("%s must be listed again: %s", self._kind.resource.plural, error)
                self.state.expired(self._clock() - began)
            except errors.ObjectNotFound as error:
                if self._kind.resource is JOB:
                    raise errors.NotServed(f"{JOB.plural} are no longer served: the CRD was deleted") from error
                if self._kind.optional:
                    self._not_served()
                    self.alive = self._clock()
                    await asyncio.sleep(NOT_SERVED_SECONDS)
                    continue
                self._retry(error, began)
            except errors.KubeError as error:
                self._retry(error, began)
            self.alive = self._clock()
            await asyncio.sleep(self.state.pause(self._jitter()))

    def _retry(self, error: errors.KubeError, began: float) -> None:
        is_missing = self._kind.in_cluster and isinstance(error, errors.ObjectNotFound | errors.Forbidden)
        was_missing = is_missing and self.listed.is_set()
        if is_missing:
            # An older CRD, or no right beyond the namespaces: jobs that need no runtime must not wait for one.
            self._table.served = False
            self.listed.set()
        self.state.failed(self._clock() - began)
        self._observer.watch_failed(self._kind.resource.plural)
        what = "listed" if self.state.version is None else "watched"
        # A watch that breaks is routine; a row of failures is not.
        is_news = self.state.failures > 1 or self.state.version is None
        level = logging.WARNING if is_news and not was_missing else logging.INFO
        logger.log(level, "%s could not be %s; will retry: %s", self._kind.resource.plural, what, error)

    def _not_served(self) -> None:
        """Notes that the API server does not serve an optional kind. Nothing waits for its list."""
        if self._table.served:
            logger.warning("%s are not served: is their project installed?", self._kind.resource.plural)
        self._table.served = False
        self.state = ReflectorState()
        changed = self._table.clear(self._scope)
        self.listed.set()
        self._changed(self._table, changed)

    async def _list(self) -> None:
        kind, objects, version = self._kind, list[Object](), ""
        async for page, version in self._client.pages(kind.resource, self._scope, kind.selector, limit=PAGE):  # noqa: B007
            objects += map(kind.trim, page)
            self.alive = self._clock()
            await asyncio.sleep(0)
        changed = self._table.replace(self._scope, objects, version)
        self._table.served = True
        self.state.listed(version)
        self._observer.listed(kind.resource.plural)
        self.listed.set()
        self._changed(self._table, changed)

    async def _watch(self) -> None:
        kind = self._kind
        assert self.state.version is not None, "a list comes first"
        events = self._client.watch(
            kind.resource,
            self._scope,
            kind.selector,
            self.state.version,
            seconds=WATCH_SECONDS * (1 + self._jitter()),
            quiet_seconds=QUIET_SECONDS,
        )
        async for batch in events:
            self.alive = self._clock()
            self._table.served = True
            changed: set[Key] = set()
            for event in batch:
                changed |= self._take(event["type"], event["object"])
            if changed:
                self._changed(self._table, changed)
            await asyncio.sleep(0)

    def _take(self, kind: str, obj: Object) -> set[Key]:
        version = str(obj["metadata"].get("resourceVersion") or "")
        changed: set[Key] = set()
        if kind == "BOOKMARK":
            self._table.advance(self._scope, int(version) if version.isdecimal() else 0)
        else:
            self._observer.watch_event(self._kind.resource.plural)
            changed = self._table.event(self._scope, kind, obj)
        self.state.advanced(version)
        return changed
