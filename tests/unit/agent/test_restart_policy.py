"""The restart decision as a table: what a failure costs, and how long the next attempt waits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dtj_agent.group.restart_policy import Fail, Restart
from dtj_contract import names
from dtj_contract.names import Reason
from tests.unit.agent.coordinator_harness import WALL
from tests.unit.agent.restart_job import (
    CONNECTION,
    COUNTED,
    CRASHED,
    FAILED,
    FREE,
    LOST,
    MISSING,
    OOM,
    STUCK,
    Job,
    outcome,
)

DECISIONS: dict[str, tuple[Callable[[], Job], str, float]] = {
    # what a failure costs
    "a worker killed by a signal is restarted at once and counted": (lambda: Job().breaks(FAILED), COUNTED, 0),
    "a worker killed for memory is counted": (lambda: Job().breaks(OOM), COUNTED, 0),
    "a lost pod is free": (lambda: Job().breaks(LOST), FREE, 0),
    "a lost pod is free though the budget is empty": (lambda: Job(max_restarts=0).breaks(LOST), FREE, 0),
    "an agent that crashed is counted": (lambda: Job().breaks(CRASHED), COUNTED, 0),
    "a stuck worker is counted": (lambda: Job().breaks(STUCK), COUNTED, 0),
    "a permanent error fails the job at once": (lambda: Job().breaks(Reason.IMPORT_FAILED), Reason.IMPORT_FAILED, 0),
    "exit code 93 fails the job at once": (
        lambda: Job().breaks(Reason.NO_RESTART_EXIT_CODE),
        Reason.NO_RESTART_EXIT_CODE,
        0,
    ),
    # the budget
    "the last restart of the budget is granted": (
        lambda: Job(max_restarts=3).times(3, FAILED, stepped=True),
        COUNTED,
        0,
    ),
    "the failure after the last restart fails the job": (
        lambda: Job(max_restarts=3).times(4, FAILED),
        "RestartBudgetSpent",
        0,
    ),
    "an agent that crashed fails a job without budget": (
        lambda: Job(max_restarts=0).breaks(CRASHED),
        "RestartBudgetSpent",
        0,
    ),
    "a restart that has left the window no longer weighs": (
        lambda: Job(max_restarts=1, window=100).breaks(FAILED).breaks(FAILED, after=101, stepped=True),
        COUNTED,
        0,
    ),
    "a restart within the window still weighs": (
        lambda: Job(max_restarts=1, window=100).breaks(FAILED).breaks(FAILED, after=99),
        "RestartBudgetSpent",
        0,
    ),
    # connections that break and come back
    "the first lost connection is free and answered at once": (lambda: Job().breaks(CONNECTION), FREE, 0),
    "the third lost connection without progress is free and waits": (lambda: Job().times(3, CONNECTION), FREE, 2),
    "the fourth lost connection without progress is counted": (lambda: Job().times(4, CONNECTION), COUNTED, 4),
    "connections that break together are one loss": (lambda: Job().breaks(*[CONNECTION] * 9), FREE, 0),
    "a crash beside a fourth lost connection is charged once": (
        lambda: Job(max_restarts=1).times(3, CONNECTION).breaks(CONNECTION, CRASHED),
        COUNTED,
        0,
    ),
    "lost connections outside the window weigh nothing": (
        lambda: Job(window=100).times(9, CONNECTION, after=101),
        FREE,
        0,
    ),
    "a new step forgives lost connections": (lambda: Job().times(3, CONNECTION).step(51).breaks(CONNECTION), FREE, 0),
    "a step that is done again forgives nothing": (
        lambda: Job().step(50).times(3, CONNECTION).step(50).breaks(CONNECTION),
        COUNTED,
        4,
    ),
    "a new checkpoint forgives lost connections": (
        lambda: Job().times(3, CONNECTION).checkpoint(5).breaks(CONNECTION),
        FREE,
        0,
    ),
    # the refill
    "a checkpoint refills the budget": (
        lambda: Job(max_restarts=1).breaks(FAILED).checkpoint(5).breaks(FAILED, stepped=True),
        COUNTED,
        0,
    ),
    "a checkpoint of a step that was saved before refills nothing": (
        lambda: Job(max_restarts=1).checkpoint(5).breaks(FAILED).checkpoint(5).breaks(FAILED),
        "RestartBudgetSpent",
        0,
    ),
    "a step alone refills nothing": (
        lambda: Job(max_restarts=1).breaks(FAILED).step(99).breaks(FAILED),
        "RestartBudgetSpent",
        0,
    ),
    "a file saved by a script that reports nothing refills the budget": (
        lambda: Job(max_restarts=1).saved(0.0).breaks(FAILED).saved(5.0).breaks(FAILED, stepped=True),
        COUNTED,
        0,
    ),
    "a file that was there at the first look refills nothing": (
        lambda: Job(max_restarts=1).breaks(FAILED).saved(5.0).breaks(FAILED),
        "RestartBudgetSpent",
        0,
    ),
    "a file that an attempt writes within 10 s refills nothing": (
        lambda: Job(max_restarts=1).saved(0.0).breaks(FAILED).saved(5.0, age=9.0).breaks(FAILED),
        "RestartBudgetSpent",
        0,
    ),
    # the back-off
    "the second attempt that ends without a step waits": (lambda: Job().times(2, FAILED), COUNTED, 1),
    "the wait doubles up to 30 s": (lambda: Job().times(9, FAILED), COUNTED, 30),
    "an attempt that did a step is followed at once": (
        lambda: Job().times(2, FAILED).breaks(FAILED, stepped=True),
        COUNTED,
        0,
    ),
    "an attempt that lived for 10 s is followed at once": (
        lambda: Job().times(2, FAILED).breaks(FAILED, lived=10),
        COUNTED,
        0,
    ),
    "an attempt that ended within 10 s is held back": (
        lambda: Job().times(2, FAILED).breaks(FAILED, lived=9),
        COUNTED,
        2,
    ),
    # files that are not there
    "a missing file is tried again and counted": (lambda: Job().times(4, MISSING, lived=60), COUNTED, 0),
    "a missing file fails the job at the fifth attempt in a row": (lambda: Job().times(5, MISSING), MISSING, 0),
    "another failure ends the row of missing files": (
        lambda: Job().times(4, MISSING, lived=60).breaks(FAILED, lived=60).breaks(MISSING, lived=60),
        COUNTED,
        0,
    ),
}


@pytest.mark.parametrize(("job", "expected", "wait"), DECISIONS.values(), ids=DECISIONS)
def test_policy_decides(job: Callable[[], Job], expected: str, wait: float) -> None:
    assert outcome(job()) == (expected, wait)


def test_permanent_reasons_all_fail_the_job() -> None:
    assert {reason for reason in names.PERMANENT if isinstance(Job().breaks(reason).result, Fail)} == names.PERMANENT


def test_fail_names_the_budget_and_the_failure_that_exceeded_it() -> None:
    result = Job(max_restarts=0).breaks(FAILED).result
    assert isinstance(result, Fail)
    assert result.message == "the budget of 0 restarts within 3600 s is spent; the last failure: it was WorkerFailed"
    assert result.failure["reason"] == "WorkerFailed"


def test_missing_file_is_announced_once() -> None:
    job = Job().times(5, MISSING)
    (event,) = job.history.events
    assert event["message"] == "it was FileNotFound; retrying, 5 attempts in total"


def test_budget_counts_within_its_window() -> None:
    job = Job(max_restarts=2, window=100.0)
    job.time = 0.0
    charged = []
    for time in (0.0, 50.0, 99.0, 101.0, 120.0, 151.0):
        job.time = time
        charged.append(isinstance(job.breaks(FAILED).result, Restart))
    assert charged == [True, True, False, True, False, True]


def test_refilled_budget_is_whole() -> None:
    job = Job(max_restarts=1, window=100.0)
    job.time, job.history.spent = 6.0, [WALL + 5.0]
    assert isinstance(job.breaks(FAILED).result, Fail)
    job.checkpoint(1)
    job.time = 7.0
    assert isinstance(job.breaks(FAILED).result, Restart)
    assert isinstance(Job(max_restarts=0, window=100.0).breaks(FAILED).result, Fail)


# --- how long the next attempt waits ----------------------------------------------------------------------------------


def waits(*attempts: tuple[bool, float]) -> list[float]:
    job = Job(max_restarts=99)
    results = [job.breaks(FAILED, stepped=stepped, lived=lived).result for stepped, lived in attempts]
    return [result.wait for result in results if isinstance(result, Restart)]


def test_first_attempt_that_ends_at_once_is_retried_at_once() -> None:
    assert waits((False, 0.1)) == [0.0]


def test_later_attempts_wait_longer_each_time_up_to_a_limit() -> None:
    assert waits(*[(False, 0.1)] * 9) == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_step_resets_the_wait() -> None:
    assert waits((False, 1), (False, 1), (True, 1), (False, 1), (False, 1)) == [0.0, 1.0, 0.0, 0.0, 1.0]


def test_attempt_that_lived_for_a_minute_resets_the_wait() -> None:
    assert waits((False, 1), (False, 1), (False, 60), (False, 1)) == [0.0, 1.0, 0.0, 0.0]


def test_policy_holds_the_next_attempt_until_the_wait_is_over() -> None:
    job = Job()
    job.time = 5.0
    job.breaks(FAILED, lived=0.1)
    job.time = 6.0
    job.breaks(FAILED, lived=0.1)
    assert job.policy.not_before == 7.0


def test_waits_after_lost_connections_grow_up_to_two_minutes() -> None:
    job = Job(max_restarts=99)
    results = [job.breaks(CONNECTION).result for _ in range(1, 12)]
    waits = [result.wait for result in results if isinstance(result, Restart)]
    assert waits == [0, 1, 2, 4, 8, 16, 32, 64, 120, 120, 120]
    job.history.without_progress = 0
    job.history.losses = [job.now().wall] * (10**6 - 1)
    job.history.spent = []
    result = job.breaks(CONNECTION).result
    assert isinstance(result, Restart)
    assert result.wait == 120
