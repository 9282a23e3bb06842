"""The pure half of the leader election: what a replica does next, and whether it may still write."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dtj_operator.leader.election import Do, Election, Record, Step, Timing

TIMING = Timing()
OTHERS = Record(holder="other", version="7", seconds=10.0)
MINE = Record(holder="me", version="8", seconds=10.0)
START = Election(me="me", timing=TIMING)
STANDBY = START.observed(OTHERS, 100.0)
LEADER = START.observed(None, 100.0).written(MINE, 100.0)


def test_defaults_take_over_within_ten_seconds_and_step_down_three_before() -> None:
    assert (TIMING.lease_seconds, TIMING.renew_seconds, TIMING.retry_seconds) == (10.0, 7.0, 2.0)
    assert STANDBY.step(100.0) == Step(Do.WAIT, 10.0), "a take-over 10 s after the last renewal that was seen"
    assert LEADER.left(100.0) == 7.0
    assert 2 * TIMING.call_seconds <= TIMING.renew_seconds
    assert TIMING.retry_seconds + TIMING.call_seconds + TIMING.failed_renewal_seconds < TIMING.renew_seconds


def steps() -> dict[str, tuple[Election, float, Do]]:
    """Returns what follows from which view. A function, so that a planted bug is in the views, too."""
    standby = START.observed(OTHERS, 100.0)
    leader = START.observed(None, 100.0).written(MINE, 100.0)
    rows = [
        ("nothing is known yet", START, 100.0, Do.READ),
        ("there is no lease", START.observed(None, 100.0), 100.0, Do.CREATE),
        ("the lease was released", START.observed(replace(OTHERS, holder=""), 100.0), 100.0, Do.TAKE),
        ("the answer to our own write was lost", START.observed(MINE, 100.0), 100.0, Do.TAKE),
        ("another holds it", standby, 109.9, Do.WAIT),
        ("another did not renew it", standby, 110.0, Do.TAKE),
        ("another renewed it", standby.observed(replace(OTHERS, version="9"), 109.0), 118.9, Do.WAIT),
        ("the same record was read again", standby.observed(OTHERS, 109.0), 110.0, Do.TAKE),
        ("the holder wrote a longer duration", START.observed(replace(OTHERS, seconds=30), 100.0), 129.9, Do.WAIT),
        ("the holder wrote no duration", START.observed(replace(OTHERS, seconds=0), 100.0), 110.0, Do.TAKE),
        ("another took it first", standby.conflicted(), 110.0, Do.READ),
        ("nothing new was read after a conflict", standby.conflicted().observed(OTHERS, 111.0), 111.0, Do.TAKE),
        ("no answer to a take-over", standby.failed(110.0), 111.9, Do.WAIT),
        ("no answer to a take-over, later", standby.failed(110.0), 112.0, Do.TAKE),
        ("we lead", leader, 101.9, Do.WAIT),
        ("the renewal is due", leader, 102.0, Do.RENEW),
        ("the lease was renewed", leader.written(MINE, 105.0), 108.0, Do.RENEW),
        ("the renewal has failed", leader.failed(103.0), 103.4, Do.WAIT),
        ("the renewal has failed, later", leader.failed(103.0), 103.5, Do.RENEW),
        ("the renewal met a conflict", leader.conflicted(), 102.0, Do.READ),
        ("the renewal was carried out without an answer", leader.conflicted().observed(MINE, 103.0), 103.0, Do.RENEW),
        ("no renewal within the deadline", leader.failed(106.9), 107.0, Do.STEP_DOWN),
        ("the process was stopped for a minute", leader, 160.0, Do.STEP_DOWN),
        ("the clock went back", leader, 99.0, Do.STEP_DOWN),
        ("the lease was stolen", leader.observed(OTHERS, 101.0), 101.0, Do.WAIT),
        ("the lease was deleted", leader.observed(None, 101.0), 101.0, Do.CREATE),
        ("we stepped down", leader.stepped_down(), 107.0, Do.READ),
        ("we stepped down, and nobody came", leader.stepped_down().observed(MINE, 107.0), 107.0, Do.TAKE),
    ]
    return {case: (election, now, do) for case, election, now, do in rows}


@pytest.mark.parametrize("case", steps())
def test_next_step_follows_from_record_and_clock(case: str) -> None:
    election, now, do = steps()[case]
    assert election.step(now).do is do


@pytest.mark.parametrize(
    ("election", "now", "left"),
    [
        (START, 100.0, 0.0),
        (STANDBY, 100.0, 0.0),
        (LEADER, 106.0, 1.0),
        (LEADER, 107.0, 0.0),
        (LEADER, 1000.0, 0.0),
        (LEADER, 99.0, 0.0),
        (LEADER.conflicted(), 103.0, 4.0),
        (LEADER.failed(103.0), 103.0, 4.0),
        (LEADER.observed(MINE, 105.0), 105.0, 2.0),
        (LEADER.observed(OTHERS, 101.0), 101.0, 0.0),
        (LEADER.written(MINE, 105.0), 106.0, 6.0),
        (LEADER.stepped_down(), 101.0, 0.0),
    ],
)
def test_leader_may_write_for_the_deadline_after_the_start_of_a_renewal(
    election: Election, now: float, left: float
) -> None:
    assert election.left(now) == pytest.approx(left)


@pytest.mark.parametrize("skew", [-3600.0, 0.0, 3600.0])
def test_skew_between_two_clocks_changes_no_decision(skew: float) -> None:
    standby = START.observed(OTHERS, 100.0 + skew)
    assert standby.step(109.9 + skew).do is Do.WAIT
    assert standby.step(110.0 + skew).do is Do.TAKE


def test_standby_that_was_stopped_writes_on_the_version_that_it_saw() -> None:
    """The API server rejects the write if the leader has renewed meanwhile, and the wait begins again."""
    assert STANDBY.step(500.0).do is Do.TAKE
    assert STANDBY.record is not None
    assert STANDBY.record.version == "7"
    renewed = STANDBY.conflicted().observed(replace(OTHERS, version="50"), 500.0)
    assert renewed.step(500.0) == Step(Do.WAIT, 10.0)


def test_leader_tries_at_least_twice_before_it_steps_down_on_a_hanging_server() -> None:
    election, now, tries = LEADER, 100.0, 0
    while (step := election.step(now)).do is not Do.STEP_DOWN:
        now += step.seconds
        if step.do is Do.RENEW:
            tries += 1
            election = election.failed(now)
    assert tries >= 2
    assert now <= 100.0 + TIMING.renew_seconds + 1e-6


def test_leader_and_standby_never_may_write_at_the_same_time() -> None:
    """The standby saw the last renewal when it was stored, after the leader's clock had begun to count."""
    for delay in (0.0, 0.5, 3.0):
        standby = START.observed(replace(OTHERS, version="8"), 100.0 + delay)
        taken = next(now / 10 for now in range(1000, 1200) if standby.step(now / 10).do is Do.TAKE)
        assert LEADER.left(taken) == 0.0
        assert taken - (100.0 + TIMING.renew_seconds) >= 3.0 - 1e-6, "the time that a write in flight has"
