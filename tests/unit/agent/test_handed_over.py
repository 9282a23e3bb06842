"""The operator's message to the coordinator: a changed budget, and why pods were lost."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from dtj_agent.group import restart_rules
from dtj_contract import names
from dtj_contract.operator_message import HEADER, LostPod, OperatorMessage, RestartBudget, decode, encode
from tests.lib.waiting import wait_until
from tests.unit.agent.coordinator_harness import CoordinatorHarness
from tests.unit.agent.harness import Group, running, token

# --- the message ------------------------------------------------------------------------------------------------------
BUDGET = RestartBudget(7, 20, 60.0, 5)


def test_message_survives_the_header() -> None:
    message = OperatorMessage(BUDGET, (LostPod("j-1", "fd00::1", "PodEvicted", True),))
    assert decode(encode(message)) == message
    assert encode(message).isascii()


def test_message_with_too_many_pods_is_cut_to_the_size_of_a_header() -> None:
    pods = tuple(LostPod("p" * 253, f"10.0.0.{number}", "Preempted", False) for number in range(1000))
    text = encode(OperatorMessage(BUDGET, pods))
    assert len(text) < names.MAX_HTTP_BYTES / 2
    assert decode(text).budget == BUDGET
    assert 5 < len(decode(text).lost_pods) <= 16


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[]",
        "null",
        "[" * 4000,
        '{"restart": 1, "lostPods": {}}',
        '{"restart": {"generation": 1}}',
        '{"restart": {"generation": true, "maxRestarts": 1, "windowSeconds": 1, "maxRestartsWithoutProgress": 1}}',
        '{"restart": {"generation": 1, "maxRestarts": -1, "windowSeconds": 1, "maxRestartsWithoutProgress": 1}}',
        '{"restart": {"generation": 1, "maxRestarts": 1, "windowSeconds": NaN, "maxRestartsWithoutProgress": 1}}',
        '{"lostPods": [1, {"pod": "a"}, {"pod": "a", "address": "b", "reason": "Injected"}]}',
        '{"lostPods": []}' + " " * 5000,
    ],
)
def test_malformed_message_hands_nothing_over(text: str) -> None:
    assert decode(text) == OperatorMessage()


# --- the coordinator --------------------------------------------------------------------------------------------------


class Handed(CoordinatorHarness):
    def hand(self, budget: RestartBudget | None = None, *lost: LostPod) -> None:
        self.do(self.coordinator.handed_over(OperatorMessage(budget, lost), self.now()))

    @property
    def history(self) -> Any:
        return self.coordinator.history

    def lose_pod(self, *, generation: int, explained: str = "", own: bool = False) -> None:
        """Ends the pod of member 1, hands over why, and lets another pod of that name join."""
        self.leave(1, generation=generation)
        self.stopped(0, attempt=self.history.attempt)
        if explained:
            self.hand(None, LostPod("j-1", "10.0.0.1", explained, own))
        self.wait(130)
        self.join(1, generation=generation + 1, incarnation=f"new{generation}")


def handed(**spec: Any) -> Handed:
    group = Handed(2, **spec)
    group.running()
    return group


def test_raised_budget_is_logged_sent_to_members_and_used() -> None:
    group = handed(max_restarts=0, generation=1)
    group.hand(RestartBudget(2, 1, 3600.0, 20))
    assert group.logged("the restart budget is now 1 within 3600 s, and 20 without progress")
    assert {ordinal for ordinal, _ in group.messages("history")} == {0, 1}
    group.fail(1)
    group.stopped(0, 1)
    assert group.coordinator.outcome is None
    assert group.history.attempt == 2


def test_number_of_kept_checkpoints_is_logged_alone() -> None:
    group = handed(max_restarts=10, generation=1)
    group.hand(RestartBudget(2, 10, 3600.0, 20, 5))
    assert group.logged("the next attempt keeps 5 checkpoints")
    assert group.history.budget == decode(encode(OperatorMessage(group.history.budget))).budget
    group.hand(RestartBudget(3, 11, 3600.0, 20, 5))
    assert group.logged("the restart budget is now 11 within 3600 s, and 20 without progress")


def test_budget_raised_after_the_end_changes_nothing() -> None:
    group = handed(max_restarts=0, generation=1)
    group.fail(1)
    group.stopped(0, 1)
    group.hand(RestartBudget(2, 9, 3600.0, 20))
    assert group.coordinator.outcome is not None
    assert group.coordinator.outcome["reason"] == "RestartBudgetSpent"
    assert group.history.budget is None


def test_budget_is_kept_when_a_members_newer_history_replaces_the_own() -> None:
    old = handed(max_restarts=0, generation=1)
    new = Handed(2, max_restarts=0, generation=1)
    new.hand(RestartBudget(4, 9, 3600.0, 20))
    new.join(1, history=old.history.to_json(), attempt=1)
    assert new.history.attempt == 1, "the member's history is the newer one"
    assert new.history.budget == RestartBudget(4, 9, 3600.0, 20)


@pytest.mark.parametrize("early", [False, True], ids=["after the loss", "before the loss"])
def test_loss_gets_the_reason_that_the_operator_hands_over(early: bool) -> None:
    group = handed()
    preempted, other = LostPod("j-1", "10.0.0.1", "Preempted", False), LostPod("j-1", "10.9.9.9", "PodEvicted", True)
    if early:
        group.hand(None, other, preempted)
    group.leave(1)
    group.stopped(0)
    if not early:
        group.hand(None, other)  # an earlier pod of that name
        assert [failure["reason"] for failure in group.history.failures] == ["PodLost"]
        group.hand(None, preempted)
    (failure,) = group.history.failures
    assert (failure["reason"], failure["message"]) == ("Preempted", "pod j-1 on node w1 was preempted")
    assert group.coordinator.phase_reason == "Preempted"
    group.join(1, generation=1, incarnation="other")
    assert group.history.recoveries[-1]["reason"] == "Preempted"
    assert group.history.pod_losses == []


def test_pod_that_evicts_itself_for_ever_fails_the_job() -> None:
    group = handed(max_restarts=5)
    rounds = 0
    while group.coordinator.outcome is None and rounds < 500:
        group.lose_pod(generation=rounds, explained="PodEvicted", own=True)
        rounds += 1
    assert rounds == 9, "3 are free, 5 are the budget"
    assert group.coordinator.outcome is not None
    assert group.coordinator.outcome["reason"] == "RestartBudgetSpent"
    assert group.coordinator.outcome["failure"]["message"] == (
        "pod j-1 on node w1 was evicted by its kubelet for what it used"
    )


def test_pods_lost_for_no_known_reason_wait_and_cost_nothing() -> None:
    group = handed(max_restarts=0)
    for generation in range(20):
        group.lose_pod(generation=generation)
    assert group.coordinator.outcome is None
    assert group.history.restarts["counted"] == 0
    assert group.logged("20 attempts ended by lost pods without progress: the next attempt waits 120 s")


def test_wait_for_a_lost_pod_ends_when_the_loss_turns_out_to_be_free() -> None:
    group = handed()
    for generation in range(3):
        group.lose_pod(generation=generation)
    group.leave(1, generation=3)
    group.stopped(0, attempt=4)
    group.hand(None, LostPod("j-1", "10.0.0.1", "Preempted", False))
    group.join(1, generation=4, incarnation="newer")
    assert group.history.attempt == 5, "at once"


def test_lost_pod_0_waits_by_the_same_rule() -> None:
    old = handed()
    for _ in range(5):
        new = Handed(2)
        new.join(0)
        attempt = old.history.attempt
        new.join(1, attempt=attempt, history=old.history.to_json(), interrupted={"attempt": attempt})
        new.wait(130)
        old = new
    assert old.logged("5 attempts ended by lost pods without progress: the next attempt waits 2 s")
    assert old.history.attempt == 6


@pytest.mark.parametrize("reason", ["Preempted", "PodEvicted", "PodDeleted", "NodeLost"])
def test_ends_of_pods_by_the_cluster_cost_nothing_and_wait_for_nothing(reason: str) -> None:
    group = handed(max_restarts=0, max_without_progress=1)
    for generation in range(20):
        attempt = group.history.attempt
        group.leave(1, generation=generation)
        group.stopped(0, attempt=attempt)
        group.hand(None, LostPod("j-1", "10.0.0.1", reason, False))
        group.join(1, generation=generation + 1, incarnation=f"new{generation}")
        assert group.history.attempt == attempt + 1, "at once"
    assert group.history.restarts["counted"] == 0


# --- RestartElsewhere -------------------------------------------------------------------------------------------------
ELSEWHERE = restart_rules.read([{"exitCodes": [7], "action": "RestartElsewhere"}])[0]


def broken(**spec: Any) -> CoordinatorHarness:
    """Returns a group whose pod 1 has failed by a rule that moves it."""
    group = CoordinatorHarness(2, rules=ELSEWHERE, **spec).running()
    group.fail(1, exit_code=7)
    group.stopped(0, 1)
    return group


def test_group_waits_for_the_pod_that_is_to_move_and_starts_once_it_has() -> None:
    group = broken()
    (failure,) = group.coordinator.history.failures
    assert (failure["action"], failure["node"], failure["rule"]) == ("RestartElsewhere", "w1", 0)
    assert group.coordinator.phase_message(group.now()) == "waiting for j-1 to be replaced on another node"
    group.wait(20)
    group.leave(1)
    group.wait(100)
    assert group.coordinator.history.attempt == 1
    group.join(1, generation=1, incarnation="other", node="w9")
    assert group.coordinator.history.attempt == 2


def test_group_restarts_in_place_if_the_pod_is_not_moved_in_time() -> None:
    group = broken()
    group.wait(names.ELSEWHERE_SECONDS - 1)
    assert group.coordinator.history.attempt == 1
    group.wait(1)
    assert group.coordinator.history.attempt == 2
    assert group.logged("j-1 was not replaced within 30 s: the group restarts in place")


def test_group_without_other_nodes_restarts_in_place_at_once_and_logs_why_once() -> None:
    text = "action RestartElsewhere restarts in place here, because there are no other nodes"
    group = broken(has_other_nodes=False)
    assert group.coordinator.history.attempt == 2
    assert group.logged(text)
    group.fail(1, exit_code=7, attempt=2)
    group.stopped(0, 1, attempt=2)
    group.wait(1)
    assert group.coordinator.history.attempt == 3
    assert not group.logged(text)


# --- real agents ------------------------------------------------------------------------------------------------------


def hand(group: Group, budget: RestartBudget, authorization: str = "") -> int:
    """Hands a budget over in a request, as the operator does. Returns the HTTP status."""
    leader, message = group.status()["ordinal"], encode(OperatorMessage(budget))
    request = urllib.request.Request(
        f"http://127.0.0.1:{group.ports[leader]}/status",
        headers={"Authorization": authorization or token(message=message), HEADER: message},
    )
    try:
        with urllib.request.urlopen(request, timeout=90) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_agents_take_a_raised_budget_and_keep_it_through_a_new_leader(tmp_path: Path) -> None:
    with running(tmp_path, 2, DTJ_MAX_RESTARTS="0", DTJ_GENERATION="1") as group:
        group.wait_attempt(1)
        assert hand(group, RestartBudget(2, 1, 3600.0, 20), "Bearer wrong") == 401
        assert hand(group, RestartBudget(2, 1, 3600.0, 20), token()) == 401, "a token that was read hands nothing over"
        assert hand(group, RestartBudget(3, 2, 3600.0, 20)) == 200
        group.tell("exit-1", "1")
        group.wait_attempt(2)
        assert group.status()["restarts"]["counted"] == 1, "the pod's own budget of 0 would have ended the job"
        leader = group.status()["ordinal"]
        group.agents[leader].kill()
        group.agents[leader].wait()
        group.start(leader)  # its environment still has the old budget
        group.wait_attempt(3)
        assert group.status()["restarts"]["counted"] == 2, "a crash of the agent"
        group.tell("exit-1", "1")
        group.wait_exit(0)
        assert group.outcome()["message"].startswith("the budget of 2 restarts within 3600 s is spent")


def test_number_of_kept_checkpoints_changes_with_the_next_attempt(tmp_path: Path) -> None:
    environ = {"DTJ_CHECKPOINT_DIR": str(tmp_path / "checkpoints"), "DTJ_CHECKPOINT_KEEP": "3", "DTJ_GENERATION": "1"}
    with running(tmp_path, 2, **environ) as group:
        group.wait_attempt(1)
        assert hand(group, RestartBudget(2, 10, 3600.0, 20, 7)) == 200
        group.tell("exit-1", "1")
        group.wait_attempt(2)
        kept = [[(group.ran(attempt, rank) or {})["DTJ_CHECKPOINT_KEEP"] for rank in (0, 1)] for attempt in (1, 2)]
        assert kept == [["3", "3"], ["7", "7"]]


def test_script_that_terminates_its_agent_is_named(tmp_path: Path) -> None:
    with running(tmp_path, 2) as group:
        group.wait_attempt(1)
        group.agents[1].terminate()
        assert group.wait_exit(1) == names.EXIT_TERMINATED
        group.start(1)  # in the same pod
        status = group.wait_attempt(2)
        assert [failure["reason"] for failure in status["failures"]] == ["AgentTerminated"]
        assert status["restarts"]["counted"] == 0


RULES = (
    '[{"logPattern":"loss is (nan|inf)","action":"Fail"},'
    '{"exitCodes":[7],"action":"RestartFree"},{"exitCodes":[8],"newMatcher":1,"action":"Fail"}]'
)


def test_rules_of_the_environment_decide_and_a_newer_one_is_left_out(tmp_path: Path) -> None:
    with running(tmp_path, 1, DTJ_MAX_RESTARTS="0", DTJ_RESTART_RULES=RULES) as group:
        group.wait_attempt(1)
        group.tell("exit-0", "7")
        group.wait_attempt(2)
        assert group.status()["restarts"]["counted"] == 0
        group.tell("raise-0", "the loss is nan at step 7")
        group.wait_exit(0)
        final = group.outcome()
        assert (final["reason"], final["failure"]["action"]) == ("RestartRule", "Fail")
        assert final["message"].startswith("restart.rules[0] fails the job: rank 0 exited with code 1: RuntimeError")
        assert "restart.rules[2] is left out: this version of the agent does not know newMatcher" in group.log(0)
        assert "DTJ_RESTART_RULES" not in (group.ran(1, 0) or {}), "the rules are no business of the workers"
        wait_until("the agent to end", lambda: group.agents[0].poll() is not None)
