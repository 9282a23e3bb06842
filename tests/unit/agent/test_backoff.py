"""A failure is answered at once; attempts that end one after the other without a step wait, longer each time."""

from __future__ import annotations

from dtj_agent.group.backoff import Backoff


def waits(*attempts: tuple[bool, float]) -> list[float]:
    backoff = Backoff()
    return [backoff.failed(stepped, lived, now=1000.0) for stepped, lived in attempts]


def test_the_first_attempt_that_ends_at_once_is_tried_again_at_once() -> None:
    assert waits((False, 0.1)) == [0.0]


def test_the_ones_after_it_wait_longer_each_time_but_not_for_ever() -> None:
    assert waits(*[(False, 0.1)] * 9) == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_a_step_begins_anew() -> None:
    assert waits((False, 1), (False, 1), (True, 1), (False, 1), (False, 1)) == [0.0, 1.0, 0.0, 0.0, 1.0]


def test_who_lived_for_a_minute_did_something_reported_or_not() -> None:
    assert waits((False, 1), (False, 1), (False, 60), (False, 1)) == [0.0, 1.0, 0.0, 0.0]


def test_it_says_until_when() -> None:
    backoff = Backoff()
    backoff.failed(False, 0.1, now=5.0)
    backoff.failed(False, 0.1, now=6.0)
    assert backoff.until == 7.0
