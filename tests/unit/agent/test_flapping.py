"""A network that breaks every attempt: free at first, then later and later, and at last it costs the job its budget."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_agent.group.backoff import Backoff
from tests.unit.agent.bench import WALL, Bench
from tests.unit.agent.simulator import World


class Flapping(Bench):
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
        self.say(0, "progress", attempt=self.coordinator.history.attempt, progress={"rank": 0, **progress})


def flapping(**rules: Any) -> Flapping:
    bench = Flapping(2, **rules)
    bench.running()
    return bench


def test_three_lost_connections_are_free_and_the_fourth_without_progress_counts() -> None:
    bench = flapping()
    counted = []
    for _ in range(5):
        bench.flaps(1)
        counted.append(bench.coordinator.history.restarts["counted"])
    assert counted == [0, 0, 0, 1, 2]
    assert [r["counted"] for r in bench.coordinator.history.recoveries] == [False, False, False, True, True]


def test_a_network_that_breaks_every_attempt_ends_the_job_with_the_connection_as_evidence() -> None:
    bench = flapping(max_restarts=2)
    bench.flaps(9)
    final = bench.coordinator.outcome
    assert final is not None
    assert (final["reason"], final["restarts"]) == ("RestartBudgetSpent", {"inPlace": 0, "pod": 5, "counted": 2})
    assert final["failure"]["reason"] == "ConnectionLost"
    assert final["message"].endswith("the last failure: the connection to pod j-1 on node w1 was lost and came back")
    assert {failure["reason"] for failure in bench.coordinator.history.failures} == {"ConnectionLost"}, "no pod was lost"


def test_the_attempts_after_lost_connections_wait_longer_each_time() -> None:
    bench = flapping()
    bench.flap()
    assert bench.leases == [1, 2], "the first loss is answered at once"
    bench.flap()
    bench.wait(0.9)
    assert bench.leases == [1, 2]
    bench.wait(0.1)
    assert bench.leases == [1, 2, 3]
    backoff = Backoff()
    assert [backoff.lost(n, now=0.0) for n in range(1, 12)] == [0, 1, 2, 4, 8, 16, 32, 64, 120, 120, 120]
    assert backoff.lost(10**6, now=0.0) == 120


PROGRESS = {
    "nothing": ([{}, {}], 2),
    "a new checkpoint": ([{"step": 7, "checkpoint": {"step": 5, "path": "p", "time": 1.0}}, {}], 0),
    "a step that no attempt had done": ([{"step": 51}, {"step": 52}], 0),
    "steps that are done again": ([{"step": 49}, {"step": 50}], 2),
}


@pytest.mark.parametrize(("reports", "counted"), PROGRESS.values(), ids=PROGRESS)
def test_progress_makes_lost_connections_free_again(reports: list[dict[str, Any]], counted: int) -> None:
    """Three losses, then two attempts that report this before they are lost too."""
    bench = flapping()
    bench.report(step=50, checkpoint={"step": 4, "path": "p", "time": 1.0})
    bench.flaps(3)
    for report in reports:
        if report:
            bench.report(**report)
        bench.flaps(1)
    assert bench.coordinator.history.restarts["counted"] == counted


def test_losses_outside_the_window_weigh_nothing() -> None:
    bench = flapping(window=100.0)
    bench.flaps(9)
    assert bench.coordinator.history.restarts["counted"] == 0


def test_a_replaced_pod_0_counts_on_where_the_last_one_was() -> None:
    old = flapping()
    old.report(step=50)
    old.flaps(3)
    old.wait(1)
    bench = Flapping(2)
    history = old.coordinator.history.to_json()
    assert history["losses"] == [WALL + 1000 + 120 * n for n in range(3)]
    bench.time = old.time
    bench.join(0, history=history, attempt=4)
    bench.join(1, history=history, attempt=4)
    bench.report(step=50)
    bench.flaps(1)
    assert bench.coordinator.history.restarts["counted"] == 1


class NeverWell(World):
    """Some connection breaks every few seconds, for ever; the training is longer than that."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.work = 10_000.0
        self.rules = self.rules._replace(max_restarts=2)

    def fault(self) -> None:
        self.after(self.rng.uniform(1.0, 5.0), self.fault)
        pod = self.rng.choice(self.pods)
        if pod.link is not None and not self.outcomes:
            self.cut(pod.link)


@pytest.mark.parametrize("seed", [seed for seed in range(20) if World(seed).replicas > 1])
def test_under_a_network_that_is_never_well_the_job_ends(seed: int) -> None:
    world = NeverWell(seed).run()
    assert world.outcomes[0]["reason"] == "RestartBudgetSpent"
    assert world.time < 300
