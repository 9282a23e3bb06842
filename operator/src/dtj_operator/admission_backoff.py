"""What the API server has refused of each job, so that it is not asked the same at every look.

The only memory of the operator beside its caches, and as they are it only saves calls: without it (a restart) the refused child
is tried once more, and the answer is the same condition.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from dtj_core.plan.model import Object, Observed
from dtj_operator.kube.executor import Rejected
from dtj_operator.kube.observer import Key
from dtj_operator.kube.resources import job_key

FIRST_SECONDS = 1.0
LAST_SECONDS = 60.0  # so long at most until a quota that was raised is noticed


@dataclass(frozen=True)
class _Rejection:
    uid: str
    generation: int
    rejected: Rejected
    wait: float
    until: float


class RejectionCache:
    """One a job: the last. Waits double from refusal to refusal."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._known: dict[Key, _Rejection] = {}

    def add(self, job: Object, rejected: Rejected) -> None:
        """It was refused just now."""
        before = self._of(job)
        wait = FIRST_SECONDS if before is None else min(2 * before.wait, LAST_SECONDS)
        metadata = job["metadata"]
        self._known[job_key(job)] = _Rejection(metadata["uid"], metadata.get("generation", 1), rejected, wait, self._now() + wait)

    def annotate(self, job: Object, observed: Observed) -> Observed:
        """`observed` with what was refused, as long as that is not to be tried again."""
        known = self._of(job)
        return observed if known is None or self._now() >= known.until else with_rejection(observed, known.rejected)

    def wait(self, job: Object) -> float | None:
        """Seconds until it is to be tried again; None if nothing was refused."""
        known = self._of(job)
        return None if known is None else max(0.0, known.until - self._now())

    def clear(self, key: Key) -> None:
        """It went through, or the job is gone."""
        self._known.pop(key, None)

    def _of(self, job: Object) -> _Rejection | None:
        """Of this very job as it is written now: another spec is another question."""
        known, metadata = self._known.get(job_key(job)), job["metadata"]
        same = known is not None and (known.uid, known.generation) == (metadata["uid"], metadata.get("generation", 1))
        return known if same else None


def with_rejection(observed: Observed, rejected: Rejected) -> Observed:
    """As the planner wants to be told."""
    return replace(observed, rejection=str(rejected)) if rejected.permanent else replace(observed, refusal=str(rejected))
