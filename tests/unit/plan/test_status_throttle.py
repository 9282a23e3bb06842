"""Status writes are bounded, whatever an agent reports. Significant changes are not held back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dtj_core.plan.times import rfc3339
from tests.unit.plan.objects import NOW, World, agent, condition, container, ended, job, outcome, pod, true_conditions

POLL_SECONDS = 2


def running_world(**spec: Any) -> World:
    world = World(job(**spec))
    world.settle(NOW)
    world.see(pods=tuple(pod(o, owner=world.set_uid) for o in range(3)), agent=agent())
    world.settle(NOW + 1)
    world.writes.clear()
    world.events.clear()
    return world


def warns(look: int) -> Any:
    """Returns an agent with another warning at each poll."""
    event = {"type": "Warning", "reason": "CheckpointSlow", "message": f"save {look}", "time": NOW + look}
    return agent(events=[event])


def flaps(look: int) -> Any:
    return agent(phase="Running" if look % 2 else "Rendezvous", phaseReason="WorkerFailed")


def restarts(look: int) -> Any:
    return agent(attempt=look + 2, restarts={"inPlace": look, "pod": 0, "counted": 0})


STORMS: dict[str, Callable[[int], Any]] = {
    "a warning each poll": warns,
    "two states in turn": flaps,
    "an attempt each poll": restarts,
}


@pytest.mark.parametrize("report", STORMS.values(), ids=STORMS)
def test_status_writes_of_an_ever_changing_agent_are_bounded(report: Callable[[int], Any]) -> None:
    world = running_world()
    for look in range(60):
        world.see(agent=report(look))
        world.reconcile(NOW + 10 + look * POLL_SECONDS)
    assert 1 <= world.writes.count("status") <= 10 + 12, world.writes
    assert len(world.events) <= 20 * 5 + 60


def test_agent_warnings_are_written_at_once_then_throttled_without_loss() -> None:
    world = running_world()
    for look in range(30):
        world.see(agent=agent(events=[warns(n)["events"][0] for n in range(look + 1)][-20:]))
        world.reconcile(NOW + 10 + look * POLL_SECONDS)
    world.settle(NOW + 200)
    assert [event.message for event in world.events] == [f"save {look}" for look in range(30)]
    assert world.writes[:2] == ["status", "event CheckpointSlow"], "the first one does not wait"
    assert world.writes.count("status") <= 12


def test_outcome_is_written_at_once_with_an_empty_bucket() -> None:
    world = emptied()
    world.see(agent=agent(attempt=99, phase="Finished", outcome=outcome()))
    world.reconcile(NOW + 61)
    assert true_conditions(world.status) == ["Complete"]


def test_suspension_proceeds_with_an_empty_bucket() -> None:
    world = emptied()
    assert world.job is not None
    world.job["spec"]["suspend"] = True
    world.job["metadata"]["generation"] += 1
    world.settle(NOW + 61)
    assert "delete StatefulSet" in world.writes
    world.see(pods=())
    world.settle(NOW + 62)
    assert true_conditions(world.status) == ["Suspended"]


def test_throttled_change_is_written_once_the_bucket_has_a_token() -> None:
    world = emptied()
    world.see(agent=agent(attempt=50, phase="Rendezvous", phaseReason="WorkerFailed"))
    wanted = world.reconcile(NOW + 61)
    assert wanted is not None
    assert wanted.status == world.status, "held back"
    assert wanted.events == ()
    assert wanted.requeue_after is not None
    assert 0 < wanted.requeue_after <= 10
    world.settle(NOW + 71)
    assert condition(world.status, "Restarting")["status"] == "True"
    assert world.status["attempt"] == 50


def emptied() -> World:
    """Returns a job that has just spent all of its writes."""
    world = running_world()
    for look in range(40):
        world.see(agent=restarts(look))
        world.reconcile(NOW + 60)
    assert world.writes.count("status") <= 11
    world.see(agent=restarts(40))
    world.reconcile(NOW + 60)
    world.writes.clear()
    return world


def test_progress_leaves_the_whole_bucket_to_failures() -> None:
    world = running_world()
    for look in range(10):
        world.see(agent=agent(progress={"step": look, "time": NOW + 600 + look * 30}))
        world.reconcile(NOW + 600 + look * 30)
    assert world.writes.count("status") == 10
    world.writes.clear()
    for look in range(10):
        world.see(agent=restarts(look))
        world.reconcile(NOW + 871)
    assert world.writes.count("status") == 10, "a job may make 10 writes at once"


def test_progress_is_written_at_its_pace_with_an_empty_bucket() -> None:
    world = emptied()
    world.status["writesLeft"] = 0.0
    world.settings = replace(world.settings, progress_write_seconds=2.0)
    world.see(agent=restarts(9) | {"progress": {"step": 7}})
    world.reconcile(NOW + 63)
    assert (world.writes, world.status["writesLeft"]) == (["status"], 0.3)


def test_clock_that_was_set_back_does_not_hold_progress_back() -> None:
    world = emptied()
    world.see(agent=restarts(9) | {"progress": {"step": 7}})
    world.reconcile(NOW - 3600)
    assert world.writes == ["status"]


FAILURE = {"attempt": 99, "rank": 1, "ordinal": 1, "pod": "digits-1", "reason": "WorkerFailed", "time": NOW + 60}


def seen_failures(world: World) -> list[tuple[int, str]]:
    return [(failure["attempt"], failure.get("logTail", "")) for failure in world.status.get("failures", ())]


@pytest.mark.parametrize("is_polled", [True, False], ids=["held back by the throttle", "not seen between polls"])
@pytest.mark.parametrize("result", ["Succeeded", "Failed"])
def test_failures_before_the_end_are_in_the_status(is_polled: bool, result: str) -> None:
    world = emptied()
    if is_polled:
        world.see(agent=agent(attempt=100, failures=[FAILURE | {"logTail": "Traceback"}]))
        world.reconcile(NOW + 60)
    assert seen_failures(world) == []
    last = None if result == "Succeeded" else {**FAILURE, "attempt": 100, "logTail": "the end"}
    end = ended(outcome(result, attempt=100, failures=[FAILURE], failure=last))
    over = pod(0, owner=world.set_uid, phase="Running", containerStatuses=[container(restarts=1, last=end)])
    world.see(agent=None, pods=(over,))
    world.reconcile(NOW + 61)
    assert true_conditions(world.status) == ["Complete" if last is None else "Failed"]
    assert seen_failures(world) == [(99, ""), *([] if last is None else [(100, "the end")])]


@pytest.mark.parametrize(("reason", "kept"), [("WorkerFailed", "Traceback"), ("PodEvicted", "")])
def test_short_failure_of_an_outcome_replaces_only_one_for_another_reason(reason: str, kept: str) -> None:
    world = running_world()
    world.see(agent=agent(attempt=100, failures=[FAILURE | {"logTail": "Traceback"}]))
    world.reconcile(NOW + 60)
    world.see(agent=None, pods=(pod(0, owner=world.set_uid, phase="Running", containerStatuses=[
        container(restarts=1, last=ended(outcome(attempt=100, failures=[FAILURE | {"reason": reason}]))),
    ]),))  # fmt: skip
    world.reconcile(NOW + 61)
    assert seen_failures(world) == [(99, kept)]


def listening_world() -> World:
    """Returns a running job with the settings of the operator, which hears of progress each 26 s."""
    world = running_world()
    world.settings = replace(world.settings, progress_write_seconds=25.0)
    return world


def progress(seconds: float) -> Any:
    return agent(progress={"step": int(seconds), "time": NOW + seconds})


def test_reports_of_mere_progress_cost_four_writes_in_100_seconds_and_are_never_old() -> None:
    """A report each 26 s, as the listeners get them, late by up to a second."""
    world, oldest = listening_world(), 0.0
    written, reported = world.status, 0.0
    for second in range(1, 2000):
        if second % 26 == 0:
            world.see(agent=progress(second))
            reported = second
        world.reconcile(NOW + second + (second % 7) / 7)
        if world.status != written:
            written, shown = world.status, reported
        elif second > 60:
            oldest = max(oldest, second - shown)
    assert world.writes.count("status") <= 0.04 * 2000
    assert oldest <= 27


def test_progress_is_not_held_back_by_another_write_just_before() -> None:
    world = listening_world()
    world.see(agent=progress(100))
    world.reconcile(NOW + 100)
    world.see(agent=progress(100) | {"restarts": {"inPlace": 1, "pod": 0, "counted": 0}})
    world.reconcile(NOW + 120)
    left = world.status["writesLeft"]
    world.see(agent=progress(126) | {"restarts": {"inPlace": 1, "pod": 0, "counted": 0}})
    world.reconcile(NOW + 126)
    assert world.status["progress"]["step"] == 126
    assert world.status["writesLeft"] == pytest.approx(left + 0.6 - 1.0), "the write takes from the bucket"


def test_first_step_loss_and_estimate_are_written_at_once() -> None:
    world = listening_world()
    world.see(agent=agent(progress={"optimizerSteps": 1, "time": NOW + 2}))
    world.reconcile(NOW + 2)
    assert world.status["progress"]["step"] == 1
    first = {"step": 8, "totalSteps": 90, "loss": 0.5, "remainingSeconds": 60, "time": NOW + 7}
    world.see(agent=agent(progress=first))
    world.reconcile(NOW + 7)
    assert (world.status["progress"]["loss"], world.status["progress"]["eta"]) == (0.5, rfc3339(NOW + 67))
    world.see(agent=agent(progress=first | {"step": 9, "loss": 0.4, "time": NOW + 8}))
    world.reconcile(NOW + 8)
    assert world.status["progress"]["loss"] == 0.5, "later values have a pace"


def test_figures_that_come_and_leave_take_half_of_the_bucket_at_most() -> None:
    world = listening_world()
    for look in range(1, 40):
        known = {"loss": 0.5} if look % 2 else {}
        world.see(agent=agent(progress={"step": look, "time": NOW + 2 + look * 0.1, **known}))
        world.reconcile(NOW + 2 + look * 0.1)
    assert world.status["writesLeft"] >= 4


def test_progress_out_of_its_pace_leaves_half_of_the_bucket() -> None:
    world = listening_world()
    for look in range(1, 40):
        world.see(agent=agent(progress={"step": look, "time": NOW + look * 1000}))
        world.reconcile(NOW + 10 + look * 0.1)
    assert world.status["writesLeft"] >= 4
    assert world.writes.count("status") <= 7


def test_job_whose_steps_stand_still_costs_a_write_in_ten_minutes() -> None:
    world = listening_world()
    for second in range(0, 7200, 60):
        world.see(agent=progress(1) | {"productiveSeconds": float(second)})
        world.reconcile(NOW + 100 + second)
    assert world.writes.count("status") == 12
    assert world.status["productiveSeconds"] >= 6600


def test_step_after_a_standstill_is_written_in_the_pace_of_progress() -> None:
    world = listening_world()
    for second, step in ((100, 1), (130, 1), (131, 2)):
        world.see(agent=progress(step) | {"productiveSeconds": float(second)})
        world.reconcile(NOW + second)
    assert (world.status["progress"]["step"], world.status["productiveSeconds"]) == (2, 131.0)
