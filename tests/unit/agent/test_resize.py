"""A running elastic group gets more pods, or fewer."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_agent.group.formation import Sizes
from dtj_contract import names
from dtj_contract.operator_message import GroupSize, OperatorMessage
from tests.unit.agent.coordinator_harness import CoordinatorHarness
from tests.unit.agent.formation_harness import elastic, reasons, recoveries, started

LONG_ENOUGH = names.READY_SECONDS + 0.1


def shrunk(**spec: Any) -> CoordinatorHarness:
    """Returns a group of 3 that trains as attempt 2 without pod 0, which has just come back."""
    harness = elastic(**spec)
    harness.leave(0)
    harness.stopped(1, 2)
    harness.wait(11)
    harness.join(0, generation=1, incarnation="new")
    harness.sent.clear()
    return harness


def stops(harness: CoordinatorHarness) -> list[tuple[int, float]]:
    return [(ordinal, message["grace"]) for ordinal, message in harness.messages("stop")]


def test_group_grows_by_a_pod_that_is_ready_with_the_grace_to_save() -> None:
    harness = shrunk(grace=20.0)
    harness.wait(names.READY_SECONDS - 0.1)
    assert stops(harness) == []
    harness.wait(0.2)
    assert stops(harness) == [(1, 20.0), (2, 20.0)]
    harness.fail(1, 1, "ConnectionResetError: peer", attempt=2)
    harness.stopped(1, 2, attempt=2)
    assert started(harness) == [[0, 1, 2]]
    assert recoveries(harness)[-1] == ("Resize", "GroupGrown", False)
    recovery = harness.coordinator.history.recoveries[-1]
    assert (recovery["fromReplicas"], recovery["toReplicas"]) == (2, 3)
    assert reasons(harness) == ["GroupShrunk", "GroupGrown"]
    assert [f["reason"] for f in harness.coordinator.history.failures] == ["PodLost"]


def test_group_does_not_grow_by_a_pod_that_still_imports() -> None:
    harness = shrunk()
    for _ in range(5):
        harness.receive(0, "beat", generation=1, warming=True)
        harness.wait(1)
    assert stops(harness) == []
    harness.receive(0, "beat", generation=1)
    harness.wait(LONG_ENOUGH)
    assert len(stops(harness)) == 2


SAVED: dict[str, dict[str, Any]] = {
    "a reported checkpoint": {"checkpoint": {"step": 9, "path": "p", "time": 1.0}},
    "a file": {},
}


def save(harness: CoordinatorHarness, report: dict[str, Any], number: int) -> None:
    """Lets the script save, reported or not."""
    if report:
        checkpoint = report["checkpoint"] | {"step": number}
        harness.receive(1, "progress", attempt=2, progress={"rank": 0, "checkpoint": checkpoint})
    else:
        harness.coordinator.goodput.file_saved(1000.0 + number, harness.now())


@pytest.mark.parametrize("report", SAVED.values(), ids=SAVED)
def test_group_of_a_script_that_saves_grows_after_its_next_checkpoint(report: dict[str, Any]) -> None:
    """A plain script saves nothing at SIGTERM: a growth at any other time would cost steps."""
    harness = shrunk()
    save(harness, report, 1)
    harness.wait(LONG_ENOUGH)
    harness.wait(300)
    assert stops(harness) == []
    save(harness, report, 2)
    harness.wait(1)
    assert len(stops(harness)) == 2


def test_growth_waits_ten_minutes_at_most() -> None:
    harness = shrunk()
    save(harness, SAVED["a reported checkpoint"], 1)
    harness.wait(LONG_ENOUGH)
    harness.wait(1)
    harness.wait(names.GROW_SECONDS - 2)
    assert stops(harness) == []
    harness.wait(2)
    assert len(stops(harness)) == 2


def test_pod_that_comes_and_goes_stops_the_training_once_a_minute() -> None:
    harness = shrunk()
    harness.wait(LONG_ENOUGH)
    harness.wait(0.1)
    harness.stopped(1, 2, attempt=2)
    harness.leave(0, generation=1)
    harness.stopped(1, 2, attempt=3)
    harness.wait(11)
    harness.join(0, generation=2, incarnation="newer")
    harness.sent.clear()
    harness.wait(LONG_ENOUGH)
    harness.wait(40)
    assert stops(harness) == []
    harness.wait(10)
    assert len(stops(harness)) == 2


def test_attempt_with_a_member_that_is_done_is_not_resized() -> None:
    harness = shrunk()
    harness.receive(1, "done", attempt=2, port=1)
    harness.wait(LONG_ENOUGH)
    harness.wait(1)
    assert stops(harness) == []


def scale(harness: CoordinatorHarness, replicas: int, generation: int = 2) -> None:
    message = OperatorMessage(size=GroupSize(generation, replicas))
    harness.do(harness.coordinator.handed_over(message, harness.now()))


def test_scaled_up_group_waits_a_moment_for_all_new_pods() -> None:
    harness = elastic(2, 1)
    scale(harness, 4)
    harness.join(2)
    harness.wait(5)
    assert stops(harness) == []
    harness.join(3)
    harness.wait(1)
    harness.wait(LONG_ENOUGH)
    assert len(stops(harness)) == 2
    harness.stopped(0, 1)
    assert started(harness)[1:] == [[0, 1, 2, 3]]


def test_scaled_up_group_grows_by_the_pods_that_came() -> None:
    harness = elastic(2, 1)
    scale(harness, 4)
    harness.join(2)
    harness.wait(1)
    harness.wait(9)
    assert stops(harness) == []
    harness.wait(LONG_ENOUGH + 1)
    harness.stopped(0, 1)
    assert started(harness)[1:] == [[0, 1, 2]]


def test_scaled_down_group_continues_with_the_lowest_ordinals() -> None:
    harness = elastic(3, 1)
    scale(harness, 2)
    assert [ordinal for ordinal, _ in stops(harness)] == [0, 1, 2]
    harness.stopped(0, 1, 2)
    assert started(harness) == [[0, 1, 2], [0, 1]]
    assert recoveries(harness) == [("Resize", "GroupShrunk", False)]
    harness.receive(2, "leaving", grace=5.0)
    harness.leave(2)
    harness.wait(100)
    assert (harness.coordinator.phase, len(started(harness))) == ("Running", 2)


SIZES = {
    "a later generation": (2, 4, 4),
    "an older one": (0, 4, 3),
    "more than the most": (2, 9, 5),
    "fewer than the least": (2, 1, 2),
}


@pytest.mark.parametrize(("generation", "replicas", "wanted"), SIZES.values(), ids=SIZES)
def test_wanted_size_is_of_the_latest_generation_and_within_limits(generation: int, replicas: int, wanted: int) -> None:
    harness = elastic(3, 2, 5, generation=1)
    message = OperatorMessage(size=GroupSize(generation, replicas))
    harness.do(harness.coordinator.handed_over(message, harness.now()))
    assert harness.coordinator.formation.sizes(harness.coordinator.history).wanted == wanted


def test_size_survives_the_coordinator() -> None:
    harness = elastic(2, 1)
    scale(harness, 3)
    new = elastic(2, 1, joined=0)
    new.join(1, attempt=1, history=harness.coordinator.history.to_json())
    assert new.coordinator.formation.sizes(new.coordinator.history) == Sizes(3, 2, 1)


def test_job_that_is_not_elastic_ignores_a_size() -> None:
    harness = CoordinatorHarness(2).running()
    scale(harness, 3)
    assert harness.coordinator.formation.sizes(harness.coordinator.history) == Sizes(2, 2, 2)
