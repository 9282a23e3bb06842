"""The coordinator's decisions, one by one. test_simulator.py has the invariants that always hold."""

from __future__ import annotations

import pytest

from dtj_agent.group.history import History
from dtj_contract import names
from tests.unit.agent.coordinator_harness import CoordinatorHarness


def test_attempt_starts_when_all_have_joined_with_ranks_by_ordinal() -> None:
    harness = CoordinatorHarness()
    for ordinal in (2, 0):
        harness.join(ordinal)
    assert harness.coordinator.waiting_for == [1]
    assert not harness.leases
    harness.join(1)
    starts = harness.messages("start")
    assert [(o, m["attempt"], m["nodeRank"], m["nodes"], m["masterAddr"], m["masterPort"]) for o, m in starts] == [
        (ordinal, 1, ordinal, 3, "10.0.0.0", 20000) for ordinal in range(3)
    ]
    assert (harness.coordinator.phase, harness.coordinator.phase_reason) == ("Running", "WorkersRunning")


def test_next_attempt_waits_until_every_member_has_stopped() -> None:
    harness = CoordinatorHarness().running()
    harness.fail(1)
    assert [ordinal for ordinal, _ in harness.messages("stop")] == [0, 1, 2]
    assert {message["grace"] for _, message in harness.messages("stop")} == {names.STOP_GRACE_SECONDS}
    harness.stopped(0, 1)
    assert (harness.coordinator.phase, harness.leases) == ("Stopping", [1])
    harness.stopped(2)
    assert harness.messages("start")[0][1]["attempt"] == 2
    assert harness.messages("start")[0][1]["masterPort"] == 21000


def test_messages_about_another_attempt_are_dropped() -> None:
    harness = CoordinatorHarness(2).running()
    harness.fail(0, attempt=7)
    harness.receive(0, "done", attempt=0, port=1)
    harness.receive(1, "stopped", attempt=3, port=1)
    harness.receive(1, "progress", attempt=2, progress={"rank": 0, "step": 9})
    harness.receive(0, "done", attempt=1, port=1)
    assert (harness.coordinator.phase, harness.coordinator.history.progress, harness.sent) == ("Running", None, [])


ROOT_CAUSES = {
    "a crash before the failures of its peers": ([(0, 1, "ConnectionResetError: peer"), (1, -9, "")], 2, "SIGKILL"),
    "a permanent error before a crash": ([(0, -9, ""), (1, 93, "")], 2, None),
    "else the first that was reported": ([(0, 1, "ValueError: a"), (1, 1, "ConnectionResetError: b")], 0, None),
    "an abort is not a crash": ([(0, 1, "ValueError: a"), (1, -6, "NCCL watchdog")], 0, None),
}


@pytest.mark.parametrize(("failures", "rank", "signal"), ROOT_CAUSES.values(), ids=ROOT_CAUSES)
def test_history_keeps_the_root_cause(failures: list[tuple[int, int, str]], rank: int, signal: str | None) -> None:
    harness = CoordinatorHarness(2).running()
    for ordinal, code, tail in failures:
        harness.fail(ordinal, code, tail)
    harness.stopped(0, 1)
    (failure,) = harness.coordinator.history.failures
    assert (failure["rank"], failure["signal"]) == (rank, signal)


def test_failures_of_survivors_of_a_lost_pod_are_not_counted() -> None:
    """A killed pod's peers fail with connection errors, perhaps before its own connection ends."""
    harness = CoordinatorHarness(2).running()
    harness.fail(0, 1, "ConnectionResetError: peer")
    harness.stopped(0)
    assert harness.coordinator.phase == "Stopping"
    harness.leave(1, silence=0.2)
    assert (harness.coordinator.phase, harness.coordinator.waiting_for) == ("Rendezvous", [1])
    harness.time += 7
    harness.join(1, generation=1, incarnation="new")
    recovery = harness.coordinator.history.recoveries[-1]
    assert (recovery["kind"], recovery["reason"], recovery["counted"]) == ("Pod", "PodLost", False)
    assert recovery["seconds"]["schedule"] == pytest.approx(7)
    assert harness.coordinator.history.restarts == {"inPlace": 0, "pod": 1, "counted": 0}
    assert [f["reason"] for f in harness.coordinator.history.failures] == ["PodLost"]


def test_permanent_error_beside_a_lost_pod_still_fails_the_job() -> None:
    harness = CoordinatorHarness(2).running()
    harness.fail(0, names.EXIT_NO_RESTART)
    harness.leave(1)
    harness.stopped(0)
    assert harness.coordinator.outcome is not None
    assert harness.coordinator.outcome["reason"] == "NoRestartExitCode"


def test_failure_after_the_last_restart_of_the_budget_fails_the_job() -> None:
    """maxRestarts 3 allows three counted restarts; the fourth failure ends the job."""
    harness = CoordinatorHarness(1, max_restarts=3).running()
    for attempt in (1, 2, 3, 4):
        assert harness.coordinator.outcome is None
        harness.fail(0, attempt=attempt)
        harness.stopped(0, attempt=attempt)
        harness.wait(31)
    assert harness.coordinator.outcome is not None
    assert harness.coordinator.outcome["reason"] == "RestartBudgetSpent"
    assert harness.coordinator.outcome["restarts"] == {"inPlace": 3, "pod": 0, "counted": 3}


def test_attempt_after_two_without_a_step_waits() -> None:
    """A brief fault (a volume, a name server) must not take the whole budget in a second."""
    harness = CoordinatorHarness(1).running()
    harness.fail(0, attempt=1)
    harness.stopped(0, attempt=1)
    assert harness.leases == [1, 2], "the first failure is answered at once"
    harness.fail(0, attempt=2)
    harness.stopped(0, attempt=2)
    harness.wait(0.9)
    assert harness.leases == [1, 2]
    harness.wait(0.1)
    assert harness.leases == [1, 2, 3]
    harness.receive(0, "progress", attempt=3, progress={"rank": 0, "step": 1, "stepped": True})
    harness.fail(0, attempt=3)
    harness.stopped(0, attempt=3)
    assert harness.leases == [1, 2, 3, 4], "an attempt that did a step is followed at once"


def test_newer_checkpoint_refills_the_budget() -> None:
    harness = CoordinatorHarness(1, max_restarts=1).running()
    for attempt, step in ((1, 10), (2, 20)):
        checkpoint = {"step": step, "path": "p", "time": 1.0}
        harness.receive(
            0,
            "progress",
            attempt=attempt,
            progress={"rank": 0, "step": step, "stepped": True, "checkpoint": checkpoint},
        )
        harness.fail(0, attempt=attempt)
        harness.stopped(0, attempt=attempt)
    same = {"step": 20, "path": "p", "time": 2.0}  # written again after a fall back
    harness.receive(0, "progress", attempt=3, progress={"rank": 0, "step": 20, "checkpoint": same})
    assert harness.coordinator.outcome is None
    harness.fail(0, attempt=3)
    harness.stopped(0, attempt=3)
    assert harness.coordinator.outcome is not None


def test_agent_that_crashed_in_a_living_pod_is_counted_once() -> None:
    harness = CoordinatorHarness(2).running()
    harness.leave(1)
    harness.stopped(0)
    broke = {"attempt": 1, "silence": 0.0, "ago": 0.0, "step": 30}
    harness.join(1, generation=1, incarnation="new", crashed=True, attempt=1, interrupted=broke)
    history = harness.coordinator.history
    assert history.restarts == {"inPlace": 0, "pod": 1, "counted": 1}
    assert (history.recoveries[-1]["reason"], history.recoveries[-1]["lastStep"]) == ("AgentCrashed", 30)
    assert [f["reason"] for f in history.failures] == ["AgentCrashed"]


def test_new_coordinator_takes_over_the_newest_history() -> None:
    """Pod 0 was replaced: nothing that the others remember is lost."""
    old = CoordinatorHarness(3).running()
    old.fail(2, -9)
    old.stopped(0, 1, 2)
    newest = old.messages("start")[-1][1]["history"]
    harness = CoordinatorHarness(3)
    broke = {"attempt": 2, "silence": 0.1, "ago": 12.0, "step": 55}
    harness.join(0)
    harness.join(1, history=old.coordinator.history.to_json() | {"attempt": 1}, attempt=2, interrupted=broke)
    harness.join(2, history=newest, attempt=2, interrupted=broke)
    history = harness.coordinator.history
    assert (history.attempt, history.restarts) == (3, {"inPlace": 1, "pod": 1, "counted": 1})
    assert history.recoveries[-1]["lastStep"] == 55
    assert sum(history.recoveries[-1]["seconds"].values()) == pytest.approx(12.1)
    assert [f["reason"] for f in history.failures] == ["WorkerFailed", "PodLost"]


def test_members_that_finished_without_a_coordinator_succeed() -> None:
    harness = CoordinatorHarness(2)
    history = History()
    history.attempt = 4
    for ordinal in (0, 1):
        harness.join(ordinal, state="done", attempt=4, history=history.to_json())
    assert harness.coordinator.outcome is not None
    assert harness.coordinator.outcome["result"] == "Succeeded"
    assert harness.leases == []


def test_done_member_may_leave_but_the_others_must_finish() -> None:
    harness = CoordinatorHarness(2).running()
    harness.receive(0, "done", attempt=1, port=1)
    harness.leave(0)
    assert harness.coordinator.phase == "Running"
    harness.receive(1, "done", attempt=1, port=1)
    assert harness.coordinator.outcome is not None
    assert harness.coordinator.outcome["message"] == "all 4 workers of attempt 1 exited with 0"
    harness.join(0, generation=1, attempt=1, incarnation="new")
    assert [ordinal for ordinal, _ in harness.messages("finish")] == [1, 0]
    assert not harness.coordinator.released
    harness.receive(1, "finished")
    assert harness.coordinator.released


def test_outcome_that_a_peer_holds_becomes_the_groups() -> None:
    final = {"uid": "uid", "result": "Succeeded", "reason": "AllWorkersSucceeded", "message": "m"}
    harness = CoordinatorHarness(2)
    harness.join(0)
    harness.join(1, state="finished", outcome=final)
    assert harness.messages("finish") == [
        (0, {"type": "finish", "outcome": final}),
        (1, {"type": "finish", "outcome": final}),
    ]
    alien = CoordinatorHarness(1)
    alien.join(0, outcome={**final, "uid": "another job"})
    assert alien.coordinator.outcome is None


def test_second_agent_of_an_ordinal_is_rejected_while_the_first_is_alive() -> None:
    harness = CoordinatorHarness(2).running()
    harness.join(1, generation=1, incarnation="twin")
    assert (harness.closed, harness.coordinator.phase) == ([11], "Running")
    harness.time += 3
    # The first agent has been silent: its node is lost, and has not timed out yet.
    harness.join(1, generation=2, incarnation="twin")
    assert (harness.closed, harness.coordinator.phase) == ([11, 1], "Stopping")


def test_agent_of_another_job_is_rejected() -> None:
    harness = CoordinatorHarness(1)
    harness.join(0, uid="another")
    assert (harness.closed, harness.coordinator.peers) == ([0], {})


def test_leaving_pod_gives_every_member_its_grace_until_it_is_gone() -> None:
    harness = CoordinatorHarness(2).running()
    harness.receive(1, "leaving", grace=25.0)
    assert [(o, m["grace"]) for o, m in harness.messages("stop")] == [(0, 25.0), (1, 25.0)]
    harness.receive(
        0, "progress", attempt=1, progress={"rank": 0, "step": 9, "checkpoint": {"step": 9, "path": "p", "time": 1.0}}
    )
    assert harness.coordinator.history.checkpoint == {"step": 9, "path": "p", "time": 1.0}
    harness.sent.clear()
    harness.leave(1)
    assert [(o, m["grace"]) for o, m in harness.messages("stop")] == [(0, names.STOP_GRACE_SECONDS)]
    harness.stopped(0)
    harness.join(1, generation=1, incarnation="new")
    assert harness.coordinator.history.recoveries[-1]["lastStep"] == 9
    assert harness.coordinator.history.restarts == {"inPlace": 0, "pod": 1, "counted": 0}


def test_spare_pod_takes_the_rank_of_a_lost_one() -> None:
    """Ranks stay contiguous by ordinal."""
    harness = CoordinatorHarness(2).running()
    harness.join(2)
    harness.leave(1)
    harness.stopped(0)
    assert [(o, m["attempt"], m["nodeRank"]) for o, m in harness.messages("start")] == [(0, 2, 0), (2, 2, 1)]


def test_recovery_is_timed_by_phase() -> None:
    harness = CoordinatorHarness(1).running()
    harness.receive(0, "progress", attempt=1, progress={"rank": 0, "step": 120, "stepped": True})
    harness.time += 10
    harness.fail(0)
    harness.time += 0.3
    harness.stopped(0)
    harness.time += 2
    harness.receive(0, "progress", attempt=2, progress={"rank": 0, "phase": "loading"})
    harness.time += 0.1
    harness.receive(0, "progress", attempt=2, progress={"rank": 0, "phase": "training", "resumedStep": 100})
    harness.time += 0.2
    harness.receive(0, "progress", attempt=2, progress={"rank": 0, "step": 101, "stepped": True})
    harness.time += 5
    harness.receive(0, "progress", attempt=2, progress={"rank": 0, "step": 130, "stepped": True})
    (recovery,) = harness.coordinator.history.recoveries
    assert recovery["seconds"] == pytest.approx(
        {"detect": 0, "stop": 0.3, "schedule": 0, "rendezvous": 0, "load": 2.1, "firstStep": 0.2}
    )
    assert (recovery["lastStep"], recovery["resumedStep"], recovery["lostSteps"]) == (120, 100, 20)


def test_recovery_of_a_silent_script_has_no_load_time() -> None:
    harness = CoordinatorHarness(1)
    harness.running()
    harness.time += 20
    harness.fail(0, -9)
    harness.stopped(0)
    harness.time += 48
    harness.receive(0, "done", attempt=2, port=1)
    final = harness.coordinator.outcome
    assert final is not None
    assert set(final["recoveries"][-1]["seconds"]) == {"detect", "stop", "schedule", "rendezvous"}
    assert final["productiveSeconds"] == 0.0


def test_productive_time_ends_with_a_checkpoint_or_success() -> None:
    harness = CoordinatorHarness(1).running()
    harness.receive(0, "progress", attempt=1, progress={"rank": 0, "resumedStep": 0, "phase": "training"})
    harness.time += 10
    harness.receive(
        0, "progress", attempt=1, progress={"rank": 0, "step": 5, "checkpoint": {"step": 5, "path": "", "time": 0.0}}
    )
    harness.time += 4
    assert harness.coordinator.goodput.productive_seconds(harness.now()) == pytest.approx(14)
    harness.fail(0)
    harness.stopped(0)
    assert harness.coordinator.goodput.productive_seconds(harness.now()) == pytest.approx(10)
    harness.receive(0, "progress", attempt=2, progress={"rank": 0, "resumedStep": 5, "phase": "training"})
    harness.time += 6
    harness.receive(0, "done", attempt=2, port=1)
    assert harness.coordinator.outcome is not None
    assert harness.coordinator.outcome["productiveSeconds"] == pytest.approx(16)


def test_progress_is_that_of_the_lowest_reporting_rank() -> None:
    harness = CoordinatorHarness(2).running()
    harness.receive(1, "progress", attempt=1, progress={"rank": 2, "step": 4, "loss": 1.0})
    harness.receive(0, "progress", attempt=1, progress={"rank": 0, "step": 3, "loss": 2.0})
    harness.receive(1, "progress", attempt=1, progress={"rank": 2, "step": 5, "loss": 3.0})
    assert harness.coordinator.history.progress is not None
    assert (harness.coordinator.history.progress["step"], harness.coordinator.history.progress["loss"]) == (3, 2.0)


def test_rendezvous_timeout_fails_the_job_and_names_the_missing_pods() -> None:
    harness = CoordinatorHarness(3, rendezvous_timeout=60.0)
    harness.join(0)
    harness.time += 61
    harness.do(harness.coordinator.tick(harness.now()))
    assert harness.coordinator.outcome is not None
    assert harness.coordinator.outcome["reason"] == "RendezvousTimeout"
    assert harness.coordinator.outcome["message"] == (
        "no attempt could start within 60 s: waiting for j-1 (never seen), j-2 (never seen)"
    )


def test_group_without_room_for_a_pod_waits_for_days_and_resumes() -> None:
    harness = CoordinatorHarness(2).running()
    harness.leave(1)
    harness.stopped(0)
    harness.wait(3 * 86400)
    assert harness.coordinator.outcome is None
    harness.join(1, generation=1)
    assert harness.messages("start")[-1][1]["attempt"] == 2


def test_failures_of_all_members_send_each_member_one_stop() -> None:
    harness = CoordinatorHarness(6).running()
    for ordinal in range(6):
        harness.fail(ordinal)
    assert [ordinal for ordinal, _ in harness.messages("stop")] == [0, 1, 2, 3, 4, 5]


def test_shorter_grace_is_sent_to_stopping_members() -> None:
    harness = CoordinatorHarness(3).running()
    harness.receive(2, "leaving", grace=25.0)
    harness.stopped(1)
    harness.fail(0)
    harness.fail(2)
    graces = [(ordinal, message["grace"]) for ordinal, message in harness.messages("stop")]
    assert graces == [(0, 25.0), (1, 25.0), (2, 25.0), (0, 0.5), (2, 0.5)]


def test_waiting_group_names_the_missing_pods_and_since_when() -> None:
    harness = CoordinatorHarness(4).running()
    harness.fail(0)
    harness.stopped(0, 3)
    assert harness.coordinator.phase_message(harness.now()) == "waiting for the workers of j-1, j-2 to terminate"
    harness.leave(1)
    harness.stopped(2)
    harness.receive(3, "leaving", grace=5.0)
    harness.wait(12)
    expected = "waiting for j-1 (left 12 s ago), j-3 (its pod is terminating)"
    assert (harness.coordinator.phase_message(harness.now()), harness.coordinator.waiting_for) == (expected, [1, 3])
    assert not harness.logged(expected)
    harness.wait(18)
    assert harness.logged("waiting for j-1 (left 30 s ago), j-3 (its pod is terminating)"), (
        "the log repeats it every half minute"
    )
    new = CoordinatorHarness(20)
    new.join(0)
    assert new.coordinator.phase_message(new.now()).endswith("j-8 (never seen), and 11 more")


def test_complete_group_reports_what_else_it_waits_for() -> None:
    harness = CoordinatorHarness(1)
    harness.grants = False
    harness.join(0)
    harness.wait(names.LEASE_DEADLINE_SECONDS + 1)
    assert harness.coordinator.phase_message(harness.now()) == "the checkpoint volume has not answered for 11 s"
    failing = CoordinatorHarness(1).running()
    for attempt in (1, 2):
        assert failing.coordinator.phase_message(failing.now()) == ""
        failing.fail(0, attempt=attempt)
        failing.stopped(0, attempt=attempt)
    assert failing.coordinator.phase_message(failing.now()) == "the next attempt starts in 1 s"
