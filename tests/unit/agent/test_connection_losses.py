"""A network that breaks every attempt: free at first, then charged, until the job fails."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.agent.coordinator_harness import WALL, CoordinatorHarness
from tests.unit.agent.simulator import World


class Flapping(CoordinatorHarness):
    """Member 1 loses its connection in every attempt, and is back at once."""

    generation = 0

    def flap(self) -> None:
        self.leave(1, generation=self.generation, silence=0.1)
        self.stopped(0, attempt=self.coordinator.history.attempt)
        self.generation += 1
        attempt = self.coordinator.history.attempt
        self.join(1, generation=self.generation, attempt=attempt, interrupted={"attempt": attempt})

    def flaps(self, times: int) -> None:
        for _ in range(times):
            if self.coordinator.outcome is None:
                self.flap()
                self.wait(120)

    def report(self, **progress: Any) -> None:
        self.receive(0, "progress", attempt=self.coordinator.history.attempt, progress={"rank": 0, **progress})


def flapping(**spec: Any) -> Flapping:
    harness = Flapping(2, **spec)
    harness.running()
    return harness


def test_lost_connections_are_counted_from_the_fourth_without_progress() -> None:
    harness = flapping()
    counted = []
    for _ in range(5):
        harness.flaps(1)
        counted.append(harness.coordinator.history.restarts["counted"])
    assert counted == [0, 0, 0, 1, 2]
    assert [r["counted"] for r in harness.coordinator.history.recoveries] == [False, False, False, True, True]


def test_network_that_breaks_every_attempt_fails_the_job_with_evidence() -> None:
    harness = flapping(max_restarts=2)
    harness.flaps(9)
    final = harness.coordinator.outcome
    assert final is not None
    assert (final["reason"], final["restarts"]) == ("RestartBudgetSpent", {"inPlace": 0, "pod": 5, "counted": 2})
    assert final["failure"]["reason"] == "ConnectionLost"
    assert final["message"].endswith("the last failure: the connection to pod j-1 on node w1 was lost and restored")
    assert {failure["reason"] for failure in harness.coordinator.history.failures} == {"ConnectionLost"}, (
        "no pod was lost"
    )


def test_attempt_after_a_second_lost_connection_waits() -> None:
    harness = flapping()
    harness.flap()
    assert harness.leases == [1, 2], "the first loss is answered at once"
    harness.flap()
    harness.wait(0.9)
    assert harness.leases == [1, 2]
    harness.wait(0.1)
    assert harness.leases == [1, 2, 3]


PROGRESS = {
    "nothing": ([{}, {}], 2),
    "a new checkpoint": ([{"step": 7, "checkpoint": {"step": 5, "path": "p", "time": 1.0}}, {}], 0),
    "a step that no attempt had done": ([{"step": 51}, {"step": 52}], 0),
    "steps that are done again": ([{"step": 49}, {"step": 50}], 2),
}


@pytest.mark.parametrize(("reports", "counted"), PROGRESS.values(), ids=PROGRESS)
def test_progress_makes_lost_connections_free_again(reports: list[dict[str, Any]], counted: int) -> None:
    """Three losses, then two attempts that report this before they are lost too."""
    harness = flapping()
    harness.report(step=50, checkpoint={"step": 4, "path": "p", "time": 1.0})
    harness.flaps(3)
    for report in reports:
        if report:
            harness.report(**report)
        harness.flaps(1)
    assert harness.coordinator.history.restarts["counted"] == counted


def test_losses_outside_the_window_weigh_nothing() -> None:
    harness = flapping(window=100.0)
    harness.flaps(9)
    assert harness.coordinator.history.restarts["counted"] == 0


def test_replaced_pod_0_continues_to_count_lost_connections() -> None:
    old = flapping()
    old.report(step=50)
    old.flaps(3)
    old.wait(1)
    harness = Flapping(2)
    history = old.coordinator.history.to_json()
    assert history["losses"] == [WALL + 1000 + 120 * n for n in range(3)]
    harness.time = old.time
    harness.join(0, history=history, attempt=4)
    harness.join(1, history=history, attempt=4)
    harness.report(step=50)
    harness.flaps(1)
    assert harness.coordinator.history.restarts["counted"] == 1


class NeverWell(World):
    """Some connection breaks every few seconds, for ever; the training is longer than that."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.work = 10_000.0
        self.training.silence = 1.0  # progress would refill the budget
        self.spec = self.spec._replace(max_restarts=2)

    def fault(self) -> None:
        self.after(self.rng.uniform(1.0, 5.0), self.fault)
        pod = self.rng.choice(self.pods)
        if pod.link is not None and not self.outcomes:
            self.cut(pod.link)


@pytest.mark.parametrize("seed", [seed for seed in range(20) if World(seed).replicas > 1])
def test_job_under_a_network_that_never_recovers_ends(seed: int) -> None:
    world = NeverWell(seed).run()
    assert world.outcomes[0]["reason"] == "RestartBudgetSpent"
    assert world.time < 300
