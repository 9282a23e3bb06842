"""Status writes are bounded, whatever an agent reports. Significant changes are not held back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.plan.objects import NOW, World, agent, condition, job, outcome, pod, true_conditions

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
