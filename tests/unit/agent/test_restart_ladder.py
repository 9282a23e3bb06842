"""The restart decision, continued: lost pods, no progress, a budget that changes, and the user's rules."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dtj_agent.group.group_spec import GroupSpec
from dtj_agent.group.history import History
from dtj_agent.group.restart_policy import Fail, RestartPolicy
from dtj_contract.names import Reason
from dtj_contract.operator_message import RestartBudget
from tests.unit.agent.restart_job import (
    CONNECTION,
    COUNTED,
    CRASHED,
    DELETED,
    EVICTED,
    FAILED,
    FREE,
    LOST,
    MISSING,
    PREEMPTED,
    TERMINATED,
    Job,
    outcome,
)

DECISIONS: dict[str, tuple[Callable[[], Job], str, float]] = {
    # pods that are lost again and again
    "a third lost pod without progress is answered at once": (lambda: Job().times(3, LOST), FREE, 0),
    "a fourth lost pod without progress waits and is free": (lambda: Job().times(4, LOST), FREE, 1),
    "500 lost pods without progress wait for two minutes each": (lambda: Job().times(500, LOST), FREE, 120),
    "pods that are lost together are one loss": (lambda: Job().breaks(*[LOST] * 9), FREE, 0),
    "a new step forgives lost pods": (lambda: Job().times(3, LOST).step(51).breaks(LOST), FREE, 0),
    "a new checkpoint forgives lost pods": (lambda: Job().times(9, LOST).checkpoint(5).breaks(LOST), FREE, 0),
    "lost pods outside the window weigh nothing": (lambda: Job(window=100).times(9, LOST, after=101), FREE, 0),
    "a preempted pod is free however often": (lambda: Job(max_restarts=0).times(50, PREEMPTED), FREE, 0),
    "a drained pod is free however often": (lambda: Job(max_restarts=0).times(50, EVICTED), FREE, 0),
    "a deleted pod is free however often": (lambda: Job(max_restarts=0).times(50, DELETED), FREE, 0),
    "a pod lost with its node is free however often": (
        lambda: Job(max_restarts=0).times(50, Reason.NODE_LOST),
        FREE,
        0,
    ),
    "the third restart of a pod's node is free": (lambda: Job(0).times(3, Reason.NODE_LOST, ownFault=True), FREE, 0),
    "the fourth restart of a pod's node is counted": (
        lambda: Job().times(4, Reason.NODE_LOST, ownFault=True),
        COUNTED,
        1,
    ),
    "the third eviction for what the pod used is free": (lambda: Job().times(3, EVICTED, ownFault=True), FREE, 0),
    "the fourth eviction for what the pod used is counted": (
        lambda: Job().times(4, EVICTED, ownFault=True),
        COUNTED,
        1,
    ),
    "evictions for what the pod used end the job": (
        lambda: Job().times(500, EVICTED, ownFault=True),
        "RestartBudgetSpent",
        0,
    ),
    "slow evictions for what the pod used end the job too": (
        lambda: Job(window=3600).times(500, EVICTED, ownFault=True, after=420),
        "NoProgress",
        0,
    ),
    "a script that signals its agent is counted from the fourth time on": (
        lambda: Job().times(4, TERMINATED),
        COUNTED,
        1,
    ),
    "a lost pod that turns out to be preempted is free and waits for nothing": (
        lambda: Job().times(9, LOST, PREEMPTED),
        FREE,
        0,
    ),
    "a lost pod that turns out to be evicted is one loss": (
        lambda: Job().times(4, LOST, EVICTED, ownFault=True),
        COUNTED,
        0,
    ),
    # no progress
    "the last restart without progress is granted": (
        lambda: Job(99, max_without_progress=3).times(3, FAILED, stepped=True, after=9999),
        COUNTED,
        0,
    ),
    "the failure after the last restart without progress fails the job": (
        lambda: Job(99, max_without_progress=3).times(4, FAILED, stepped=True, after=9999),
        "NoProgress",
        0,
    ),
    "a step that no attempt had done is progress": (
        lambda: Job(99, max_without_progress=1).breaks(FAILED).step(1).breaks(FAILED, stepped=True),
        COUNTED,
        0,
    ),
    "a new checkpoint is progress": (
        lambda: Job(99, max_without_progress=1).breaks(FAILED).checkpoint(1).breaks(FAILED, stepped=True),
        COUNTED,
        0,
    ),
    "a saved file is progress": (
        lambda: Job(99, max_without_progress=1).saved(0).breaks(FAILED).saved(5).breaks(FAILED, stepped=True),
        COUNTED,
        0,
    ),
    "a script that shows nothing and lives long makes progress for all that is known": (
        lambda: Job(99, max_without_progress=1).times(50, FAILED, lived=31, after=9999),
        COUNTED,
        0,
    ),
    "a script that shows nothing and ends early makes no progress": (
        lambda: Job(99, max_without_progress=1).times(2, FAILED, lived=30),
        "NoProgress",
        0,
    ),
    "a long attempt of a script that shows nothing ends no row": (
        lambda: Job(99, max_without_progress=1).breaks(FAILED).breaks(FAILED, lived=31),
        COUNTED,
        0,
    ),
    "long attempts of a script that shows nothing make no row": (
        lambda: Job(99, max_without_progress=1).times(5, FAILED, lived=31).breaks(FAILED, lived=30),
        COUNTED,
        0,
    ),
    "counted steps begin at 0 in each attempt and show no lack of progress": (
        lambda: Job(99, max_without_progress=1).times(50, FAILED, stepped=True, lived=9999, after=9999),
        COUNTED,
        0,
    ),
    "a script with counted steps that hangs for good ends": (
        lambda: Job(99, max_without_progress=5).times(9, Reason.WORKER_HUNG, stepped=True, lived=1900, after=1900),
        "NoProgress",
        0,
    ),
    "a crashed agent of a script that shows nothing makes no row": (
        lambda: Job(99, max_without_progress=1).times(50, Reason.AGENT_CRASHED, lived=9999, after=9999),
        COUNTED,
        0,
    ),
    "free restarts are no lack of progress": (
        lambda: Job(max_without_progress=1).breaks(FAILED).times(50, PREEMPTED),
        FREE,
        0,
    ),
    # the budget of a running job
    "a raised budget is taken at once": (
        lambda: Job(1, generation=1).breaks(FAILED, stepped=True).budget(2, 2).breaks(FAILED, stepped=True),
        COUNTED,
        0,
    ),
    "an older budget than that handed over before is ignored": (
        lambda: Job(9, generation=1).budget(3, 1).budget(2, 9).times(2, FAILED),
        "RestartBudgetSpent",
        0,
    ),
    "an older budget than the pod's own is ignored": (
        lambda: Job(1, generation=3).breaks(FAILED).budget(2, 9).breaks(FAILED),
        "RestartBudgetSpent",
        0,
    ),
    "a lowered budget is taken too": (
        lambda: Job(9, generation=1).breaks(FAILED).budget(2, 1).breaks(FAILED),
        "RestartBudgetSpent",
        0,
    ),
    "a shorter window is taken at once": (
        lambda: Job(1, generation=1).breaks(FAILED).budget(2, 1, window=50).breaks(FAILED, after=51, stepped=True),
        COUNTED,
        0,
    ),
    "more restarts without progress are taken at once": (
        lambda: (
            Job(99, generation=1, max_without_progress=1)
            .breaks(FAILED)
            .budget(2, 99, without_progress=2)
            .breaks(FAILED, stepped=True)
        ),
        COUNTED,
        0,
    ),
    # rules
    "Fail ends the job at the first failure": (
        lambda: Job(rules=[{"exitCodes": [7], "action": "Fail"}]).breaks(FAILED, exitCode=7),
        "RestartRule",
        0,
    ),
    "Fail ends the job for a lost pod": (
        lambda: Job(rules=[{"reasons": ["PodLost"], "action": "Fail"}]).breaks(LOST),
        "RestartRule",
        0,
    ),
    "Restart overrides a permanent error": (
        lambda: Job(rules=[{"reasons": ["ImportFailed"], "action": "Restart"}]).breaks(Reason.IMPORT_FAILED),
        COUNTED,
        0,
    ),
    "Restart counts a loss that is free by default": (
        lambda: Job(rules=[{"reasons": ["Preempted"], "action": "Restart"}]).breaks(PREEMPTED),
        COUNTED,
        0,
    ),
    "Restart of a missing file has no limit of its own": (
        lambda: Job(rules=[{"reasons": ["FileNotFound"], "action": "Restart"}]).times(9, MISSING, stepped=True),
        COUNTED,
        0,
    ),
    "RestartFree costs nothing, and waits as any attempt that ends at once": (
        lambda: Job(0, rules=[{"exitCodes": [7], "action": "RestartFree"}]).times(3, FAILED, exitCode=7),
        FREE,
        2,
    ),
    "RestartFree of a crashed agent costs nothing": (
        lambda: Job(0, rules=[{"reasons": ["AgentCrashed"], "action": "RestartFree"}]).breaks(CRASHED),
        FREE,
        0,
    ),
    "RestartFree of lost connections costs nothing, and they wait": (
        lambda: Job(0, rules=[{"reasons": ["ConnectionLost"], "action": "RestartFree"}]).times(5, CONNECTION),
        FREE,
        8,
    ),
    "RestartElsewhere is counted": (
        lambda: Job(rules=[{"exitCodes": [7], "action": "RestartElsewhere"}]).breaks(FAILED, exitCode=7),
        COUNTED,
        0,
    ),
    "the first rule that matches decides": (
        lambda: Job(
            rules=[
                {"exitCodes": [8], "action": "Fail"},
                {"exitCodes": [7], "action": "RestartFree"},
                {"exitCodePreset": "Permanent", "action": "Fail"},
            ]
        ).breaks(FAILED, exitCode=7),
        FREE,
        0,
    ),
}


@pytest.mark.parametrize(("job", "expected", "wait"), DECISIONS.values(), ids=DECISIONS)
def test_policy_decides(job: Callable[[], Job], expected: str, wait: float) -> None:
    assert outcome(job()) == (expected, wait)


def test_no_progress_names_what_was_reached_and_what_to_change() -> None:
    job = Job(99, max_without_progress=2).step(437).checkpoint(400).times(3, FAILED)
    assert isinstance(job.result, Fail)
    assert job.result.message == (
        "2 restarts in a row made no progress: no attempt got beyond step 437, and the newest checkpoint is of step"
        " 400; the last failure: it was WorkerFailed; fix it and create a new job, with a higher"
        " restart.maxRestartsWithoutProgress if such a row is to be expected"
    )


def test_fail_by_rule_names_the_rule_and_the_failure() -> None:
    result = Job(rules=[{"exitCodes": [9], "action": "Fail"}, {"exitCodes": [7], "action": "Fail"}])
    failed = result.breaks(FAILED, exitCode=7).result
    assert isinstance(failed, Fail)
    assert failed.message == "restart.rules[1] fails the job: it was WorkerFailed"
    assert failed.failure["action"] == "Fail"


def test_counts_of_the_policy_survive_a_new_pod_0() -> None:
    job = Job(99, max_without_progress=3, generation=1).budget(5, 99, 60.0, 2).times(2, FAILED).breaks(LOST)
    job.history = History.from_json(job.history.to_json())
    job.policy = RestartPolicy(GroupSpec("uid", 2, 1, max_restarts=1, generation=1))
    assert job.policy.budget(job.history) == RestartBudget(5, 99, 60.0, 2)
    assert len(job.history.pod_losses) == 1
    assert isinstance(job.breaks(FAILED).result, Fail)


def test_later_environment_of_a_new_pod_0_overrides_the_remembered_budget() -> None:
    job = Job(3, generation=7)
    job.history.budget = RestartBudget(6, 99, 60.0, 2)
    assert job.policy.budget(job.history).max_restarts == 3
