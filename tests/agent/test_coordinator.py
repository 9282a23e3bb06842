"""The coordinator's decisions, one by one; what holds whatever happens is in test_simulator.py."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_agent import group, names
from dtj_agent.coordinator import Coordinator
from dtj_agent.group import Rules
from dtj_agent.history import History
from dtj_agent.messages import Now, check

WALL = 1_790_000_000.0


class Bench:
    """A coordinator and members that answer like real ones; time stands still unless it is moved."""

    def __init__(
        self, replicas: int = 3, history: History | None = None, final: dict[str, Any] | None = None, **rules: Any
    ) -> None:
        self.time = 1000.0
        self.coordinator = Coordinator(Rules("uid", replicas, 2, **rules), history or History(), final, self.now())
        self.sent: list[tuple[int, dict[str, Any]]] = []  # ordinal, message
        self.closed: list[int] = []
        self.leases: list[int] = []
        self.grants = True

    def now(self) -> Now:
        return Now(self.time, WALL + self.time)

    def do(self, effects: list[group.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, group.Send):
                self.sent.append((effect.conn % 10, check(effect.message)))
            elif isinstance(effect, group.Close):
                self.closed.append(effect.conn)
            elif isinstance(effect, group.WriteLease):
                self.leases.append(effect.attempt)
                if self.grants:
                    self.do(self.coordinator.lease_done(effect.attempt, None, None, self.now()))

    def hello(self, ordinal: int, **changes: Any) -> dict[str, Any]:
        hello = {
            "type": "hello", "version": 1, "uid": "uid", "ordinal": ordinal, "incarnation": f"i{ordinal}", "pod": f"j-{ordinal}",
            "node": f"w{ordinal}", "address": f"10.0.0.{ordinal}", "port": 20000 + ordinal, "state": "idle", "attempt": 0,
            "history": History().to_json(), "outcome": None, "crashed": False, "interrupted": None,
        }  # fmt: skip
        return check({**hello, **changes})

    def join(self, ordinal: int, generation: int = 0, **changes: Any) -> None:
        """Connection numbers end with the ordinal."""
        self.do(self.coordinator.joined(generation * 10 + ordinal, self.hello(ordinal, **changes), self.now()))

    def leave(self, ordinal: int, generation: int = 0, silence: float = 0.0) -> None:
        self.do(self.coordinator.left(generation * 10 + ordinal, silence, self.now()))

    def say(self, ordinal: int, type_: str, generation: int = 0, **fields: Any) -> None:
        self.do(self.coordinator.received(generation * 10 + ordinal, check({"type": type_, **fields}), self.now()))

    def fail(self, ordinal: int, exit_code: int = 1, tail: str = "", attempt: int = 1, oom: bool = False) -> None:
        rank = ordinal * 2
        failure = {"rank": rank, "exitCode": exit_code, "logTail": tail, "oom": oom}
        self.say(ordinal, "failed", attempt=attempt, failures=[failure])

    def stopped(self, *ordinals: int, attempt: int = 1) -> None:
        for ordinal in ordinals:
            self.say(ordinal, "stopped", attempt=attempt, port=21000 + ordinal)

    def wait(self, seconds: float) -> None:
        self.time += seconds
        self.do(self.coordinator.tick(self.now()))

    def running(self, **rules: Any) -> Bench:
        for ordinal in range(self.coordinator.rules.replicas):
            self.join(ordinal)
        self.sent.clear()
        return self

    def messages(self, type_: str) -> list[tuple[int, dict[str, Any]]]:
        return [(ordinal, message) for ordinal, message in self.sent if message["type"] == type_]


def test_an_attempt_starts_when_all_have_joined_with_ranks_by_ordinal() -> None:
    bench = Bench()
    for ordinal in (2, 0):
        bench.join(ordinal)
    assert bench.coordinator.waiting_for == [1]
    assert not bench.leases
    bench.join(1)
    starts = bench.messages("start")
    assert [(o, m["attempt"], m["nodeRank"], m["nodes"], m["masterAddr"], m["masterPort"]) for o, m in starts] == [
        (ordinal, 1, ordinal, 3, "10.0.0.0", 20000) for ordinal in range(3)
    ]
    assert (bench.coordinator.phase, bench.coordinator.phase_reason) == ("Running", "WorkersRunning")


NUMBERS = {
    "the first": ({}, [0, 0], 1),
    "the operator's floor": ({"attempt_floor": 7}, [0, 0], 7),
    "what a peer remembers": ({}, [0, 4], 5),
    "the floor is below": ({"attempt_floor": 3}, [6, 0], 7),
}


@pytest.mark.parametrize(("rules", "known", "attempt"), NUMBERS.values(), ids=NUMBERS)
def test_an_attempts_number_is_one_more_than_all_that_anyone_knows(rules: dict[str, int], known: list[int], attempt: int) -> None:
    bench = Bench(2, **rules)
    for ordinal, number in enumerate(known):
        bench.join(ordinal, attempt=number)
    assert bench.messages("start")[0][1]["attempt"] == attempt


def test_a_lease_that_is_taken_raises_the_number() -> None:
    bench = Bench(1)
    bench.grants = False
    bench.join(0)
    bench.grants = True
    bench.do(bench.coordinator.lease_done(1, 8, None, bench.now()))
    assert (bench.leases, bench.messages("start")[0][1]["attempt"]) == ([1, 9], 9)


def test_a_lease_that_another_has_written_since_ends_this_coordinators_attempts() -> None:
    """Pod 0 was made anew, and this one lives on: it must not outbid the new one, whose workers would lose their lease."""
    bench = Bench(1)
    bench.join(0)
    bench.fail(0)
    bench.grants = False
    bench.stopped(0)
    bench.do(bench.coordinator.lease_done(2, 2, None, bench.now()))
    bench.time += 100
    bench.do(bench.coordinator.tick(bench.now()))
    assert (bench.leases, len(bench.messages("start"))) == ([1, 2], 1)
    assert (bench.coordinator.phase, bench.coordinator.phase_reason) == ("Rendezvous", "CheckpointLeaseLost")


def test_a_lease_that_stands_there_after_an_error_is_this_coordinators_own() -> None:
    """The volume failed after the rename."""
    bench = Bench(1)
    bench.join(0)
    bench.fail(0)
    bench.grants = False
    bench.stopped(0)
    bench.do(bench.coordinator.lease_done(2, None, "Input/output error", bench.now()))
    bench.time += 2
    bench.do(bench.coordinator.tick(bench.now()))
    bench.do(bench.coordinator.lease_done(2, 2, None, bench.now()))
    assert bench.leases == [1, 2, 2, 3]


def test_a_lease_that_hangs_is_said_after_its_deadline_and_an_old_answer_counts_for_nothing() -> None:
    bench = Bench(1)
    bench.grants = False
    bench.join(0)
    bench.time += names.LEASE_DEADLINE_SECONDS + 1
    bench.do(bench.coordinator.tick(bench.now()))
    assert bench.coordinator.phase_reason == "CheckpointVolumeUnavailable"
    assert "has not answered" in bench.coordinator.history.events[-1]["message"]
    bench.do(bench.coordinator.lease_done(99, None, None, bench.now()))
    assert not bench.messages("start")


def test_a_member_that_leaves_before_the_lease_is_written_is_waited_for() -> None:
    bench = Bench(2)
    bench.grants = False
    bench.join(0)
    bench.join(1)
    bench.leave(1)
    bench.do(bench.coordinator.lease_done(1, None, None, bench.now()))
    assert not bench.messages("start")
    bench.grants = True
    bench.join(1, generation=1)
    assert bench.messages("start")[0][1]["attempt"] == 2


def test_the_next_attempt_waits_until_every_member_has_stopped() -> None:
    bench = Bench().running()
    bench.fail(1)
    assert [ordinal for ordinal, _ in bench.messages("stop")] == [0, 1, 2]
    assert {message["grace"] for _, message in bench.messages("stop")} == {names.STOP_GRACE_SECONDS}
    bench.stopped(0, 1)
    assert (bench.coordinator.phase, bench.leases) == ("Stopping", [1])
    bench.stopped(2)
    assert bench.messages("start")[0][1]["attempt"] == 2
    assert bench.messages("start")[0][1]["masterPort"] == 21000


def test_messages_about_another_attempt_are_dropped() -> None:
    bench = Bench(2).running()
    bench.fail(0, attempt=7)
    bench.say(0, "done", attempt=0, port=1)
    bench.say(1, "stopped", attempt=3, port=1)
    bench.say(1, "progress", attempt=2, progress={"rank": 0, "step": 9})
    bench.say(0, "done", attempt=1, port=1)
    assert (bench.coordinator.phase, bench.coordinator.history.progress, bench.sent) == ("Running", None, [])


ROOT_CAUSES = {
    "a crash before what others say of it": ([(0, 1, "ConnectionResetError: peer"), (1, -9, "")], 2, "SIGKILL"),
    "a permanent error before a crash": ([(0, -9, ""), (1, 93, "")], 2, None),
    "else the first that was heard": ([(0, 1, "ValueError: a"), (1, 1, "ConnectionResetError: b")], 0, None),
    "an abort is not a crash": ([(0, 1, "ValueError: a"), (1, -6, "NCCL watchdog")], 0, None),
}


@pytest.mark.parametrize(("failures", "rank", "signal"), ROOT_CAUSES.values(), ids=ROOT_CAUSES)
def test_the_failure_that_is_kept_is_the_first_cause(failures: list[tuple[int, int, str]], rank: int, signal: str | None) -> None:
    bench = Bench(2).running()
    for ordinal, code, tail in failures:
        bench.fail(ordinal, code, tail)
    bench.stopped(0, 1)
    (failure,) = bench.coordinator.history.failures
    assert (failure["rank"], failure["signal"]) == (rank, signal)


def test_failures_of_survivors_of_a_lost_pod_are_not_counted() -> None:
    """A killed pod's peers fail with connection errors, perhaps before its own connection is seen to end."""
    bench = Bench(2).running()
    bench.fail(0, 1, "ConnectionResetError: peer")
    bench.stopped(0)
    assert bench.coordinator.phase == "Stopping"
    bench.leave(1, silence=0.2)
    assert (bench.coordinator.phase, bench.coordinator.waiting_for) == ("Rendezvous", [1])
    bench.time += 7
    bench.join(1, generation=1, incarnation="new")
    recovery = bench.coordinator.history.recoveries[-1]
    assert (recovery["kind"], recovery["reason"], recovery["counted"]) == ("Pod", "PodLost", False)
    assert recovery["seconds"]["schedule"] == pytest.approx(7)
    assert bench.coordinator.history.restarts == {"inPlace": 0, "pod": 1, "counted": 0}
    assert [f["reason"] for f in bench.coordinator.history.failures] == ["PodLost"]


def test_a_permanent_error_beside_a_lost_pod_still_ends_the_job() -> None:
    bench = Bench(2).running()
    bench.fail(0, names.EXIT_NO_RESTART)
    bench.leave(1)
    bench.stopped(0)
    assert bench.coordinator.outcome is not None
    assert bench.coordinator.outcome["reason"] == "NoRestartExitCode"


def test_the_budget_is_spent_by_the_failure_after_the_last_restart() -> None:
    """maxRestarts 3 allows three counted restarts; the fourth failure ends the job."""
    bench = Bench(1, max_restarts=3).running()
    for attempt in (1, 2, 3, 4):
        assert bench.coordinator.outcome is None
        bench.fail(0, attempt=attempt)
        bench.stopped(0, attempt=attempt)
        bench.wait(31)
    assert bench.coordinator.outcome is not None
    assert bench.coordinator.outcome["reason"] == "RestartBudgetSpent"
    assert bench.coordinator.outcome["restarts"] == {"inPlace": 3, "pod": 0, "counted": 3}


def test_attempts_that_end_before_their_first_step_wait_for_each_other() -> None:
    """What is broken for a moment (a volume, a name server) must not take the whole budget in a second."""
    bench = Bench(1).running()
    bench.fail(0, attempt=1)
    bench.stopped(0, attempt=1)
    assert bench.leases == [1, 2], "the first failure is answered at once"
    bench.fail(0, attempt=2)
    bench.stopped(0, attempt=2)
    bench.wait(0.9)
    assert bench.leases == [1, 2]
    bench.wait(0.1)
    assert bench.leases == [1, 2, 3]
    bench.say(0, "progress", attempt=3, progress={"rank": 0, "step": 1, "stepped": True})
    bench.fail(0, attempt=3)
    bench.stopped(0, attempt=3)
    assert bench.leases == [1, 2, 3, 4], "an attempt that did a step is followed at once"


def test_a_checkpoint_newer_than_the_one_before_empties_the_count() -> None:
    bench = Bench(1, max_restarts=1).running()
    for attempt, step in ((1, 10), (2, 20)):
        checkpoint = {"step": step, "path": "p", "time": 1.0}
        bench.say(0, "progress", attempt=attempt, progress={"rank": 0, "step": step, "stepped": True, "checkpoint": checkpoint})
        bench.fail(0, attempt=attempt)
        bench.stopped(0, attempt=attempt)
    same = {"step": 20, "path": "p", "time": 2.0}  # written again after a fall back: no progress that is new
    bench.say(0, "progress", attempt=3, progress={"rank": 0, "step": 20, "checkpoint": same})
    assert bench.coordinator.outcome is None
    bench.fail(0, attempt=3)
    bench.stopped(0, attempt=3)
    assert bench.coordinator.outcome is not None


def test_an_agent_that_crashed_in_a_pod_that_lives_on_is_counted_once() -> None:
    bench = Bench(2).running()
    bench.leave(1)
    bench.stopped(0)
    broke = {"attempt": 1, "silence": 0.0, "ago": 0.0, "step": 30}
    bench.join(1, generation=1, incarnation="new", crashed=True, attempt=1, interrupted=broke)
    history = bench.coordinator.history
    assert history.restarts == {"inPlace": 0, "pod": 1, "counted": 1}
    assert (history.recoveries[-1]["reason"], history.recoveries[-1]["lastStep"]) == ("AgentCrashed", 30)
    assert [f["reason"] for f in history.failures] == ["AgentCrashed"]


def test_a_new_coordinator_takes_over_the_newest_history_and_counts_its_own_loss() -> None:
    """Pod 0 was replaced: nothing is lost of what the others remember."""
    old = Bench(3).running()
    old.fail(2, -9)
    old.stopped(0, 1, 2)
    newest = old.messages("start")[-1][1]["history"]
    bench = Bench(3)
    broke = {"attempt": 2, "silence": 0.1, "ago": 12.0, "step": 55}
    bench.join(0)
    bench.join(1, history=old.coordinator.history.to_json() | {"attempt": 1}, attempt=2, interrupted=broke)
    bench.join(2, history=newest, attempt=2, interrupted=broke)
    history = bench.coordinator.history
    assert (history.attempt, history.restarts) == (3, {"inPlace": 1, "pod": 1, "counted": 1})
    assert history.recoveries[-1]["lastStep"] == 55
    assert sum(history.recoveries[-1]["seconds"].values()) == pytest.approx(12.1)
    assert [f["reason"] for f in history.failures] == ["WorkerFailed"]


def test_members_that_have_all_finished_succeed_though_the_coordinator_was_away() -> None:
    bench = Bench(2)
    history = History()
    history.attempt = 4
    for ordinal in (0, 1):
        bench.join(ordinal, state="done", attempt=4, history=history.to_json())
    assert bench.coordinator.outcome is not None
    assert bench.coordinator.outcome["result"] == "Succeeded"
    assert bench.leases == []


def test_a_member_that_was_done_may_go_but_the_others_must_finish() -> None:
    bench = Bench(2).running()
    bench.say(0, "done", attempt=1, port=1)
    bench.leave(0)
    assert bench.coordinator.phase == "Running"
    bench.say(1, "done", attempt=1, port=1)
    assert bench.coordinator.outcome is not None
    assert bench.coordinator.outcome["message"] == "all 4 workers of attempt 1 exited with 0"
    bench.join(0, generation=1, attempt=1, incarnation="new")
    assert [ordinal for ordinal, _ in bench.messages("finish")] == [1, 0]
    assert not bench.coordinator.released
    bench.say(1, "finished")
    assert bench.coordinator.released


def test_an_outcome_that_a_peer_holds_is_the_groups() -> None:
    final = {"uid": "uid", "result": "Succeeded", "reason": "AllWorkersSucceeded", "message": "m"}
    bench = Bench(2)
    bench.join(0)
    bench.join(1, state="finished", outcome=final)
    assert bench.messages("finish") == [(0, {"type": "finish", "outcome": final}), (1, {"type": "finish", "outcome": final})]
    alien = Bench(1)
    alien.join(0, outcome={**final, "uid": "another job"})
    assert alien.coordinator.outcome is None


def test_a_second_agent_of_an_ordinal_is_refused_while_the_first_is_heard_of() -> None:
    bench = Bench(2).running()
    bench.join(1, generation=1, incarnation="twin")
    assert (bench.closed, bench.coordinator.phase) == ([11], "Running")
    bench.time += 3
    bench.join(1, generation=2, incarnation="twin")  # the first has been silent: a node that is gone, not yet timed out
    assert (bench.closed, bench.coordinator.phase) == ([11, 1], "Stopping")


def test_an_agent_that_has_seen_a_later_attempt_than_this_coordinator_started_is_refused() -> None:
    """Another coordinator has started that one: it has replaced this one."""
    bench = Bench(2).running()
    bench.leave(1)
    bench.join(1, generation=1, attempt=2)
    assert bench.closed == [11]
    bench.join(1, generation=2, attempt=1)
    assert bench.closed == [11]


def test_an_attempt_is_numbered_anew_if_one_who_joins_while_its_lease_is_written_knows_a_later_one() -> None:
    bench = Bench(1)
    bench.grants = False
    bench.join(0)
    past = History()
    past.attempt = 7
    bench.join(1, attempt=7, history=past.to_json())  # a stand-in that is not needed now, but remembers
    assert bench.leases == [1]
    bench.do(bench.coordinator.lease_done(1, None, None, bench.now()))
    assert not bench.messages("start")
    assert bench.leases == [1, 8]


def test_an_agent_of_another_job_is_refused() -> None:
    bench = Bench(1)
    bench.join(0, uid="another")
    assert (bench.closed, bench.coordinator.peers) == ([0], {})


def test_a_pod_that_leaves_gives_everyone_its_grace_until_it_is_gone() -> None:
    bench = Bench(2).running()
    bench.say(1, "leaving", grace=25.0)
    assert [(o, m["grace"]) for o, m in bench.messages("stop")] == [(0, 25.0), (1, 25.0)]
    bench.say(0, "progress", attempt=1, progress={"rank": 0, "step": 9, "checkpoint": {"step": 9, "path": "p", "time": 1.0}})
    assert bench.coordinator.history.checkpoint == {"step": 9, "path": "p", "time": 1.0}
    bench.sent.clear()
    bench.leave(1)
    assert [(o, m["grace"]) for o, m in bench.messages("stop")] == [(0, names.STOP_GRACE_SECONDS)]
    bench.stopped(0)
    bench.join(1, generation=1, incarnation="new")
    assert bench.coordinator.history.recoveries[-1]["lastStep"] == 9
    assert bench.coordinator.history.restarts == {"inPlace": 0, "pod": 1, "counted": 0}


def test_pods_beyond_the_replicas_stand_in_for_lost_ones() -> None:
    """Ranks stay contiguous by ordinal, whoever is in."""
    bench = Bench(2).running()
    bench.join(2)
    bench.leave(1)
    bench.stopped(0)
    assert [(o, m["attempt"], m["nodeRank"]) for o, m in bench.messages("start")] == [(0, 2, 0), (2, 2, 1)]


def test_a_recovery_is_timed_by_phase() -> None:
    bench = Bench(1).running()
    bench.say(0, "progress", attempt=1, progress={"rank": 0, "step": 120, "stepped": True})
    bench.time += 10
    bench.fail(0)
    bench.time += 0.3
    bench.stopped(0)
    bench.time += 2
    bench.say(0, "progress", attempt=2, progress={"rank": 0, "phase": "loading"})
    bench.time += 0.1
    bench.say(0, "progress", attempt=2, progress={"rank": 0, "phase": "training", "resumedStep": 100})
    bench.time += 0.2
    bench.say(0, "progress", attempt=2, progress={"rank": 0, "step": 101, "stepped": True})
    bench.time += 5
    bench.say(0, "progress", attempt=2, progress={"rank": 0, "step": 130, "stepped": True})
    (recovery,) = bench.coordinator.history.recoveries
    assert recovery["seconds"] == pytest.approx(
        {"detect": 0, "stop": 0.3, "schedule": 0, "rendezvous": 0, "load": 2.1, "firstStep": 0.2}
    )
    assert (recovery["lastStep"], recovery["resumedStep"], recovery["lostSteps"]) == (120, 100, 20)


def test_productive_time_is_what_a_checkpoint_or_the_end_keeps() -> None:
    bench = Bench(1).running()
    bench.say(0, "progress", attempt=1, progress={"rank": 0, "resumedStep": 0, "phase": "training"})
    bench.time += 10
    bench.say(0, "progress", attempt=1, progress={"rank": 0, "step": 5, "checkpoint": {"step": 5, "path": "", "time": 0.0}})
    bench.time += 4
    assert bench.coordinator.ledger.productive(bench.now()) == pytest.approx(14)
    bench.fail(0)
    bench.stopped(0)
    assert bench.coordinator.ledger.productive(bench.now()) == pytest.approx(10)
    bench.say(0, "progress", attempt=2, progress={"rank": 0, "resumedStep": 5, "phase": "training"})
    bench.time += 6
    bench.say(0, "done", attempt=2, port=1)
    assert bench.coordinator.outcome is not None
    assert bench.coordinator.outcome["productiveSeconds"] == pytest.approx(16)


def test_progress_is_that_of_the_lowest_rank_that_reports() -> None:
    bench = Bench(2).running()
    bench.say(1, "progress", attempt=1, progress={"rank": 2, "step": 4, "loss": 1.0})
    bench.say(0, "progress", attempt=1, progress={"rank": 0, "step": 3, "loss": 2.0})
    bench.say(1, "progress", attempt=1, progress={"rank": 2, "step": 5, "loss": 3.0})
    assert bench.coordinator.history.progress is not None
    assert (bench.coordinator.history.progress["step"], bench.coordinator.history.progress["loss"]) == (3, 2.0)


def test_a_change_of_the_history_reaches_every_member() -> None:
    bench = Bench(2).running()
    bench.say(0, "event", event={"type": "Warning", "reason": "CheckpointTorn", "message": "step 5"})
    assert [ordinal for ordinal, _ in bench.messages("history")] == [0, 1]
    assert bench.messages("history")[0][1]["history"]["events"][-1]["reason"] == "CheckpointTorn"


def test_a_rendezvous_that_takes_too_long_fails_and_names_who_is_missing() -> None:
    bench = Bench(3, rendezvous_timeout=60.0)
    bench.join(0)
    bench.time += 61
    bench.do(bench.coordinator.tick(bench.now()))
    assert bench.coordinator.outcome is not None
    assert bench.coordinator.outcome["reason"] == "RendezvousTimeout"
    assert bench.coordinator.outcome["message"] == "no attempt could start within 60 s: pods 1, 2 did not join"


GARBAGE = {
    "wrong types": {
        "revision": "x",
        "attempt": [],
        "restarts": 5,
        "spent": {},
        "recoveries": [1],
        "failures": "f",
        "startTime": "t",
    },
    "nested": {
        "attempt": 2,
        "restarts": {"pod": "many"},
        "spent": ["a"],
        "progress": 4,
        "checkpoint": [],
        "productiveSeconds": {},
    },
    "no finite numbers": {"attempt": 2, "revision": float("nan"), "productiveSeconds": float("inf"), "eventId": 10**400},
    "foreign objects": {"attempt": 2, "checkpoint": {"x": 1}, "failures": [{}], "recoveries": [{"x": 1}], "events": [{}]},
}


@pytest.mark.parametrize("history", GARBAGE.values(), ids=GARBAGE)
def test_a_peer_of_another_version_cant_bring_the_coordinator_down(history: dict[str, Any]) -> None:
    bench = Bench(2)
    broke = {"attempt": history["attempt"], "silence": "x", "ago": None, "step": "5"}
    bench.join(0, history=history, interrupted=broke, crashed=True)
    bench.join(1, history=history, interrupted="?")
    assert bench.coordinator.phase == "Running"
    attempt = bench.messages("start")[0][1]["attempt"]
    bench.say(0, "failed", attempt=attempt, failures=[5, {}, {"rank": "0"}, {"rank": 1, "exitCode": 1}])
    bench.say(1, "progress", attempt=attempt, progress={"rank": "x", "step": [], "checkpoint": {}, "events": [4]})
    bench.say(1, "progress", attempt=attempt, progress={"checkpoint": {"step": 1, "path": "p", "time": 1.0}})
    bench.stopped(0, 1, attempt=attempt)
    assert bench.messages("start")[-1][1]["attempt"] == attempt + 1
