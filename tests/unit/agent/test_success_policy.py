"""successPolicy: the ranks whose success is that of the job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dtj_agent.group.member import Finish, Identity, Member, SendToCoordinator, Spawn, Stop
from dtj_agent.group.messages import Now
from dtj_agent.group.worker_exit import WorkerExit
from dtj_agent.settings import parse
from dtj_contract import names
from tests.lib.waiting import wait_until
from tests.unit.agent.coordinator_harness import CoordinatorHarness
from tests.unit.agent.harness import kill, running

NOW = Now(1.0, 2.0)
RANK_0 = {names.ENV_SUCCESS_POLICY: names.SUCCESS_RANK_0}


def group(policy: str = names.SUCCESS_RANK_0, **spec: Any) -> CoordinatorHarness:
    """Returns a group of three pods with two ranks each, which runs attempt 1."""
    harness = CoordinatorHarness(success_policy=policy, **spec)
    for ordinal in range(3):
        harness.join(ordinal)
    assert harness.coordinator.phase == "Running"
    return harness


def succeed(harness: CoordinatorHarness, attempt: int = 1) -> None:
    beat = {"type": "beat", "attempt": attempt, "rankZeroDone": attempt}
    harness.do(harness.coordinator.received(0, beat, harness.now()))


def fail(harness: CoordinatorHarness, ordinal: int) -> None:
    failure = {"rank": 2 * ordinal, "exitCode": 1, "logTail": "boom", "oom": False}
    message = {"type": "failed", "attempt": 1, "failures": [failure]}
    harness.do(harness.coordinator.received(ordinal, message, harness.now()))


def result(harness: CoordinatorHarness) -> str:
    return str((harness.coordinator.outcome or {}).get("result"))


# --- the coordinator --------------------------------------------------------------------------------------------------


def test_rank_zero_that_succeeds_completes_the_job_at_once() -> None:
    harness = group()
    succeed(harness)
    assert result(harness) == "Succeeded"
    outcome = harness.coordinator.outcome
    assert outcome is not None
    assert outcome["message"] == "rank 0 of attempt 1 exited with 0 (successPolicy Rank0)"
    assert outcome["reason"] == "Rank0Succeeded"
    assert sorted(ordinal for ordinal, sent in harness.sent if sent["type"] == "finish") == [0, 1, 2]
    fail(harness, 1)
    assert (result(harness), harness.coordinator.history.failures) == ("Succeeded", [])


def test_rank_zero_that_succeeds_waits_for_the_others_by_default() -> None:
    harness = group(names.SUCCESS_ALL)
    succeed(harness)
    assert (result(harness), harness.coordinator.phase) == ("None", "Running")


def test_rank_zero_that_succeeds_while_the_group_stops_completes_the_job() -> None:
    harness = group()
    fail(harness, 1)
    assert harness.coordinator.phase == "Stopping"
    succeed(harness)
    assert (result(harness), harness.coordinator.history.failures) == ("Succeeded", [])


def test_rank_that_fails_before_rank_zero_succeeds_restarts_the_group() -> None:
    harness = group()
    fail(harness, 1)
    for ordinal in range(3):
        stopped = {"type": "stopped", "attempt": 1, "port": 1}
        harness.do(harness.coordinator.received(ordinal, stopped, harness.now()))
    harness.time += 60
    harness.do(harness.coordinator.tick(harness.now()))
    assert (result(harness), harness.coordinator.history.attempt) == ("None", 2)
    succeed(harness, attempt=1)
    assert result(harness) == "None", "the success of attempt 1 is late"
    succeed(harness, attempt=2)
    assert result(harness) == "Succeeded"


def test_all_ranks_complete_a_job_whose_rank_zero_decides() -> None:
    """Their agents' reports may come in any order."""
    harness = group()
    for ordinal in (2, 1, 0):
        assert result(harness) == "None"
        done = {"type": "done", "attempt": 1, "port": 1}
        harness.do(harness.coordinator.received(ordinal, done, harness.now()))
    assert result(harness) == "Succeeded"


def test_next_coordinator_learns_of_the_success_from_the_hello() -> None:
    before = group()
    history = before.coordinator.history
    harness = CoordinatorHarness(success_policy=names.SUCCESS_RANK_0, ordinal=1)
    for ordinal in (1, 2):
        harness.join(ordinal, attempt=1, history=history.to_json())
    assert result(harness) == "None"
    harness.join(0, attempt=1, history=history.to_json(), rankZeroDone=1)
    assert result(harness) == "Succeeded"


def test_success_of_an_earlier_attempt_in_a_hello_ends_nothing() -> None:
    before = group()
    history = before.coordinator.history
    history.attempt = 2
    harness = CoordinatorHarness(success_policy=names.SUCCESS_RANK_0, ordinal=1)
    harness.join(0, attempt=2, history=history.to_json(), rankZeroDone=1)
    assert result(harness) == "None"


# --- the member -------------------------------------------------------------------------------------------------------


def member(policy: str = names.SUCCESS_RANK_0, saved: dict[str, Any] | None = None) -> Member:
    me = Identity("uid", 0, "i", "j-0", "n", "10.0.0.1", 25.0, success_policy=policy)
    return Member(me, saved or {}, None)


def run(one: Member, attempt: int = 1) -> None:
    one.connected(NOW)
    start = {
        "type": "start", "attempt": attempt, "nodeRank": 0, "nodes": 2, "masterAddr": "10.0.0.1", "masterPort": 9,
        "history": {"attempt": attempt}, "leader": 0, "epoch": 1,
    }  # fmt: skip
    assert any(isinstance(effect, Spawn) for effect in one.received(start, NOW))
    one.spawned([0, 1])


def sent(effects: list[Any]) -> list[dict[str, Any]]:
    return [effect.message for effect in effects if isinstance(effect, SendToCoordinator)]


def exited(rank: int, code: int, requested: bool = False) -> WorkerExit:
    return WorkerExit(rank, code, requested, "", False)


def test_member_reports_the_success_before_the_failure_of_a_rank_beside_it() -> None:
    one = member()
    run(one)
    messages = sent(one.exited(1, [exited(1, 1), exited(0, 0)], NOW))
    assert [(message["type"], message.get("rankZeroDone")) for message in messages] == [("beat", 1), ("failed", None)]


@pytest.mark.parametrize(
    ("policy", "worker"),
    [(names.SUCCESS_ALL, exited(0, 0)), (names.SUCCESS_RANK_0, exited(0, 0, requested=True)),
     (names.SUCCESS_RANK_0, exited(1, 0)), (names.SUCCESS_RANK_0, exited(0, 3))],
    ids=["all ranks decide", "the agent stopped it", "another rank", "it failed"],
)  # fmt: skip
def test_member_reports_no_success_of_another_kind(policy: str, worker: WorkerExit) -> None:
    one = member(policy)
    run(one)
    assert all("rankZeroDone" not in message for message in sent(one.exited(1, [worker], NOW)))
    assert one.hello(NOW)["rankZeroDone"] == 0


def test_restarted_agent_remembers_the_success() -> None:
    one = member()
    run(one, attempt=4)
    one.exited(4, [exited(0, 0)], NOW)
    assert member(saved=one.saved()).hello(NOW)["rankZeroDone"] == 4


def test_member_stops_its_other_ranks_with_the_usual_grace() -> None:
    one = member()
    run(one)
    one.exited(1, [exited(0, 0)], NOW)
    final = {"uid": "uid", "result": "Succeeded", "attempt": 1}
    assert one.received({"type": "finish", "outcome": final}, NOW) == [Stop(names.STOP_GRACE_SECONDS)]
    assert sent(one.exited(1, [exited(1, -15, requested=True)], NOW)) == []
    assert any(isinstance(effect, Finish) for effect in one.workers_gone(NOW))


# --- real processes ---------------------------------------------------------------------------------------------------


def test_ranks_that_never_end_get_sigterm_when_rank_zero_has_succeeded(tmp_path: Path) -> None:
    """Rank 1 is an endless server, which saves on SIGTERM. Its end is no failure."""
    with running(tmp_path, 2, DTJ_STOP_GRACE_SECONDS="30", **RANK_0) as group:
        group.tell("handle-sigterm")
        group.wait_attempt(1)
        group.tell("exit-0", "0")
        assert [group.wait_exit(0), group.wait_exit(1)] == [0, 0]
        for ordinal in (0, 1):
            outcome = group.outcome(ordinal)
            assert (outcome["result"], outcome["failures"], outcome["restarts"]["counted"]) == ("Succeeded", [], 0)
            assert outcome["message"] == "rank 0 of attempt 1 exited with 0 (successPolicy Rank0)"


def test_rank_that_fails_before_rank_zero_restarts_the_real_group(tmp_path: Path) -> None:
    with running(tmp_path, 2, **RANK_0) as group:
        group.wait_attempt(1)
        kill(group.worker(1))
        status = group.wait_attempt(2)
        assert status["restarts"]["counted"] == 1
        group.tell("exit-0", "0")
        assert group.wait_exit(1) == 0
        assert (group.outcome(1)["result"], group.outcome(1)["attempt"]) == ("Succeeded", 2)


def test_rank_zero_alone_ends_nothing_by_default(tmp_path: Path) -> None:
    with running(tmp_path, 2) as group:
        group.wait_attempt(1)
        pid = group.worker(0)
        group.tell("exit-0", "0")
        wait_until("rank 0 to end", lambda: not Path(f"/proc/{pid}").exists())
        assert group.status(1)["phase"] == "Running"
        group.tell("finish")
        assert group.wait_exit(1) == 0
        assert group.outcome(1)["message"] == "all 2 workers of attempt 1 exited with 0"


def test_unknown_policy_is_an_error_that_names_the_variable(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("k" * 32)
    environ = {
        names.ENV_JOB: "j", names.ENV_JOB_UID: "u", names.ENV_REPLICAS: "1", names.ENV_ORDINAL: "0",
        names.ENV_PEERS: "a:1", names.ENV_LISTEN: "127.0.0.1:1", names.ENV_SECRET_FILE: str(key),
    }  # fmt: skip
    assert parse(environ, ["true"]).success_policy == names.SUCCESS_ALL
    with pytest.raises(Exception, match="DTJ_SUCCESS_POLICY: 'Rank1' must be one of AllRanks, Rank0"):
        parse({**environ, names.ENV_SUCCESS_POLICY: "Rank1"}, ["true"])
