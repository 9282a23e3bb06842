"""Remembers which object of a job the API server rejected, so that not every reconcile sends it.

Apart from the caches this is the operator's only memory, and like the caches it only saves
calls: after a restart the rejected child is tried once more, and the same condition results.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from dtj_core.plan.model import Object, Observed
from dtj_operator.kube.cache.store import Key
from dtj_operator.kube.rejections import Rejected
from dtj_operator.kube.resources import job_key

FIRST_SECONDS = 1.0
LAST_SECONDS = 60.0  # bounds the delay after a raised quota


@dataclass(frozen=True)
class _Rejection:
    uid: str
    generation: int
    rejected: Rejected
    wait: float
    until: float


class RejectionCache:
    """The last rejection of each job. The wait doubles from one rejection to the next."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._known: dict[Key, _Rejection] = {}

    def add(self, job: Object, rejected: Rejected) -> None:
        """Records a rejection that happened just now."""
        before = self._current(job)
        wait = FIRST_SECONDS if before is None else min(2 * before.wait, LAST_SECONDS)
        metadata = job["metadata"]
        self._known[job_key(job)] = _Rejection(
            metadata["uid"], metadata.get("generation", 1), rejected, wait, self._now() + wait
        )

    def annotate(self, job: Object, observed: Observed) -> Observed:
        """Returns `observed` with the remembered rejection until it is time to try again."""
        known = self._current(job)
        return observed if known is None or self._now() >= known.until else with_rejection(observed, known.rejected)

    def wait(self, job: Object) -> float | None:
        """Returns the seconds until the next try, or None if nothing was rejected."""
        known = self._current(job)
        return None if known is None else max(0.0, known.until - self._now())

    def clear(self, key: Key) -> None:
        """Drops the rejection, because the object was accepted or the job is gone."""
        self._known.pop(key, None)

    def _current(self, job: Object) -> _Rejection | None:
        """Returns the rejection of this job and generation: another spec must be tried at once."""
        known, metadata = self._known.get(job_key(job)), job["metadata"]
        same = known is not None and (known.uid, known.generation) == (metadata["uid"], metadata.get("generation", 1))
        return known if same else None


def with_rejection(observed: Observed, rejected: Rejected) -> Observed:
    """Returns `observed` with the rejection in the field that the planner reads."""
    return (
        replace(observed, rejection=str(rejected)) if rejected.permanent else replace(observed, refusal=str(rejected))
    )
