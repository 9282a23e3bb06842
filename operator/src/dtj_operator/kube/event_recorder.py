"""Records Kubernetes events about jobs: one object per event, however often the event occurs.

A repeated event increases the `series` count of the existing object. Each job gets only a
handful of events an hour, so that a flapping job can't flood etcd. Events are for people: an
event that can't be written is logged, and no reconcile fails because of it.

The name of an event holds its time, because kubectl describe lists events of events.k8s.io by
name: it sorts by lastTimestamp, which that API does not let a client set.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from dtj_contract import names
from dtj_core.plan.model import Event, Object
from dtj_operator import errors
from dtj_operator.kube.client import Client
from dtj_operator.kube.resources import EVENT

BURST = 20.0
REFILL_SECONDS = 60.0  # one more event per job each minute
# Repetitions are written no more often; the next write counts those in between.
SERIES_SECONDS = 60.0
REMEMBERED = 4096
NOTE_BYTES = 1024  # documented as characters, counted in bytes

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass
class _Series:
    name: str
    count: int = 1
    written: float = 0.0


@dataclass
class _Bucket:
    tokens: float = BURST
    time: float = 0.0


@dataclass
class _Memory:
    series: OrderedDict[str, _Series] = field(default_factory=OrderedDict)
    """By the content of the event."""
    buckets: OrderedDict[str, _Bucket] = field(default_factory=OrderedDict)


class EventRecorder:
    """Writes events of events.k8s.io/v1.

    Its memory only saves calls: after a restart of the operator, an event that occurs again is a new object.
    """

    def __init__(
        self,
        client: Client,
        instance: str,
        *,
        now: Callable[[], float] = time.time,
        dropped: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._instance = instance
        self._now = now
        self._dropped = dropped
        self._memory = _Memory()
        self._last_name = 0  # in microseconds

    async def record(self, job: Object, event: Event) -> None:
        """Records the event with one call to the API server, or none."""
        uid = job["metadata"]["uid"]
        content = content_of(job, event)
        now = self._now()
        series = self._memory.series.get(content)
        if series is not None:
            series.count += 1
            if now - series.written < SERIES_SECONDS:
                return
        if not self._take(uid, now):
            self._dropped()
            logger.info("event %s dropped: rate limit reached for this job", event.reason)
            return
        series = _remember(self._memory.series, content, series or _Series(name=self._new_name(job, now)))
        series.written = now
        try:
            if series.count == 1:
                await self._create(job, event, series.name, now)
            else:
                await self._repeat(job, series, now)
        except errors.KubeError as error:
            # Drop the series, so that the next occurrence creates a new event. ObjectNotFound means
            # that the old event has expired.
            self._memory.series.pop(content, None)
            logger.warning("event %s could not be written: %s", event.reason, error)

    async def _create(self, job: Object, event: Event, name: str, now: float) -> None:
        metadata = job["metadata"]
        body = {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.kind,
            "metadata": {"name": name, "namespace": metadata["namespace"]},
            "eventTime": micro_time(now),
            "type": event.type,
            "reason": event.reason,
            "action": event.reason,
            "note": event.message.encode(errors="replace")[:NOTE_BYTES].decode(errors="ignore"),
            "reportingController": names.GROUP + "/" + names.MANAGER,
            "reportingInstance": self._instance,
            "regarding": {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
        }
        await self._client.create(EVENT, metadata["namespace"], body)

    async def _repeat(self, job: Object, series: _Series, now: float) -> None:
        patch = {"series": {"count": series.count, "lastObservedTime": micro_time(now)}}
        await self._client.merge(EVENT, job["metadata"]["namespace"], series.name, patch)

    def _new_name(self, job: Object, now: float) -> str:
        """Returns a name that sorts behind all earlier ones of the job."""
        self._last_name = max(int(now * 1e6), self._last_name + 1)
        return f"{job['metadata']['name']}.{self._last_name:014x}"

    def _take(self, uid: str, now: float) -> bool:
        bucket = _remember(self._memory.buckets, uid, self._memory.buckets.get(uid) or _Bucket(time=now))
        bucket.tokens = min(BURST, bucket.tokens + (now - bucket.time) / REFILL_SECONDS)
        bucket.time = now
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True


def _remember(memory: OrderedDict[str, T], key: str, value: T) -> T:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > REMEMBERED:
        memory.popitem(last=False)
    return value


def content_of(job: Object, event: Event) -> str:
    """Returns a digest of the job and the content of the event."""
    text = "\0".join((job["metadata"]["uid"], event.type, event.reason, event.message))
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


def micro_time(seconds: float) -> str:
    """Returns the time as metav1.MicroTime."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
