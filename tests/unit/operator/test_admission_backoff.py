"""A rejected object is not sent at every reconcile, and is retried later."""

from __future__ import annotations

from dtj_core.plan.model import Observed
from dtj_operator.admission_backoff import RejectionCache
from dtj_operator.kube.rejections import Rejected
from tests.unit.operator.fakes import job

QUOTA = Rejected("exceeded quota", permanent=False)


class Clock:
    time = 100.0

    def __call__(self) -> float:
        return self.time


def test_rejection_waits_double_up_to_a_limit() -> None:
    clock, waits = Clock(), []
    refusals = RejectionCache(now=clock)
    for _ in range(9):
        refusals.add(job(), QUOTA)
        waits.append(refusals.wait(job()))
        clock.time += waits[-1] or 0
        assert refusals.annotate(job(), Observed()) == Observed(), "the object is retried after the wait"
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_rejection_is_annotated_until_its_wait_is_over() -> None:
    refusals = RejectionCache(now=Clock())
    refusals.add(job(), QUOTA)
    assert refusals.annotate(job(), Observed()) == Observed(refusal="exceeded quota")
    refusals.add(job(), Rejected("no such field", permanent=True))
    assert refusals.annotate(job(), Observed()) == Observed(rejection="no such field")
    assert refusals.wait(job()) == 2, "a job that has run may be admitted another time"


def test_another_job_or_spec_has_no_remembered_rejection() -> None:
    refusals = RejectionCache(now=Clock())
    refusals.add(job(), QUOTA)
    for other in (job(generation=2), job(uid="u2"), job(name="k")):
        assert refusals.annotate(other, Observed()) == Observed()
        assert refusals.wait(other) is None


def test_cleared_rejection_starts_over() -> None:
    refusals = RejectionCache(now=Clock())
    refusals.add(job(), QUOTA)
    refusals.clear(("ns", "j"))
    assert refusals.wait(job()) is None
