"""The back-off of silent agents, and the pace of agents that answer too often."""

from __future__ import annotations

import random

import pytest

from dtj_operator.following.retry import ANSWER_BURST, JITTER, Pace, retry_seconds, with_jitter


@pytest.mark.parametrize(
    ("silent", "pause"), [(0.0, 0.25), (0.4, 0.25), (2.0, 1.0), (10.0, 5.0), (120.0, 60.0), (86400.0, 60.0)]
)
def test_pause_is_half_of_the_silence_within_bounds(silent: float, pause: float) -> None:
    assert retry_seconds(silent) == pause


def test_silent_agent_is_asked_seldom_and_never_given_up() -> None:
    now, asked = 0.0, 0
    while now < 86400:
        now, asked = now + retry_seconds(now), asked + 1
    assert 1440 <= asked <= 1460, "about once a minute"


def test_jitter_spreads_agents_that_fall_silent_together() -> None:
    pauses = [with_jitter(60.0, random.Random(seed).uniform) for seed in range(500)]
    assert 60.0 <= min(pauses) < 62.0
    assert 60.0 * (1 + JITTER) - 2.0 < max(pauses) <= 60.0 * (1 + JITTER)


def test_pace_takes_a_burst_and_then_one_answer_a_second() -> None:
    pace, now, taken = Pace(), 100.0, 0
    while now < 160.0:
        taken += 1
        now += pace.pause(now)
    assert taken == ANSWER_BURST + 60


def test_pace_recovers_while_nothing_is_answered() -> None:
    pace = Pace()
    for _ in range(int(ANSWER_BURST)):
        assert pace.pause(0.0) == 0.0
    assert pace.pause(0.0) == 1.0
    assert pace.pause(60.0) == 0.0


def test_agent_that_only_makes_progress_is_never_slowed_down() -> None:
    pace = Pace()
    assert [pace.pause(26.0 * number) for number in range(100)] == [0.0] * 100
