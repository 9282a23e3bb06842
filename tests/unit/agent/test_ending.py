"""A failure that ends the job is held by a majority before it ends any pod."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dtj_agent.group.effects import Log
from dtj_agent.group.member import Exit, Finish, Identity, Member, Save, SendToCoordinator
from dtj_agent.group.messages import Now
from dtj_agent.pages.status import coordinator_status
from dtj_agent.settings import parse
from dtj_contract import names
from tests.unit.agent.coordinator_harness import CoordinatorHarness
from tests.unit.agent.formation_harness import started, with_spare
from tests.unit.agent.test_member import START
from tests.unit.agent.test_outrun import join, past

FAILED = {"uid": "uid", "attempt": 5, "result": "Failed", "reason": "RestartBudgetSpent", "message": "it failed"}
NOW = Now(0.0, 0.0)


def sent(harness: CoordinatorHarness, kind: str) -> list[int]:
    return sorted(ordinal for ordinal, _ in harness.messages(kind))


def failed_with_a_spare() -> CoordinatorHarness:
    """Returns a group of two and a spare whose leader has just decided that the job fails."""
    harness = with_spare(2, 1, max_restarts=0)
    harness.fail(1)
    harness.stopped(0, 1)
    return harness


def after_a_loss(held: dict[str, Any] = FAILED) -> CoordinatorHarness:
    """Returns a new leader in pod 0 of two and a spare, whose pod holds an outcome."""
    harness = CoordinatorHarness(2, spares=1, history=past(2), has_volume=True)
    harness.join(0, attempt=5, history=past(2).to_json(), held=held)
    return harness


@pytest.mark.parametrize("returns", [True, False], ids=["others return", "nobody returns"])
def test_leader_that_is_cut_off_ends_the_job_after_a_minute_only(returns: bool) -> None:
    """The others may continue it, and know of no failure."""
    harness = with_spare(2, 3, max_restarts=0)
    for ordinal in (2, 3, 4):
        harness.leave(ordinal)
    harness.fail(0)
    harness.stopped(0, 1)
    assert harness.coordinator.outcome is None
    assert harness.coordinator.phase_message(harness.now()) == "the job fails in 60 s, unless other pods continue it"
    harness.wait(names.FIRST_START_SECONDS - 1)
    assert (harness.coordinator.outcome, len(harness.coordinator.history.failures)) == (None, 1)
    if returns:
        harness.join(2, generation=1)
    else:
        harness.wait(1)
    assert harness.coordinator.outcome is not None
    assert harness.coordinator.outcome["reason"] == "RestartBudgetSpent"


def test_new_leader_ends_the_job_after_ten_seconds_unless_all_pods_are_there() -> None:
    """An attempt that the others know nothing of may have started on the pod that is away."""
    harness = CoordinatorHarness(2, spares=1, history=past(2), has_volume=True, max_restarts=0)
    join(harness, 1)
    broke = {"attempt": 5, "silence": 0.1, "ago": 0.1, "step": None, "leader": 1}
    harness.join(0, attempt=5, history=past(2).to_json(), crashed=True, interrupted=broke)
    harness.wait(names.CRASH_CAUSE_SECONDS)
    assert harness.coordinator.outcome is None
    harness.wait(names.TAKEOVER_SECONDS)
    assert harness.coordinator.outcome is not None
    assert harness.leases == [6], "the lease shows that no others continue the job"


def test_new_leader_ends_no_job_that_others_have_continued_as_the_lease_shows() -> None:
    """Its own pod may be one that was replaced and lives on: the new one knows attempt 6, and how it ended."""
    harness = CoordinatorHarness(2, history=past(2), has_volume=True, max_restarts=0)
    harness.grants = False
    join(harness, 1)
    broke = {"attempt": 5, "silence": 0.1, "ago": 0.1, "step": None, "leader": 1}
    harness.join(0, attempt=5, history=past(2).to_json(), crashed=True, interrupted=broke)
    harness.wait(names.CRASH_CAUSE_SECONDS)
    harness.do(harness.coordinator.lease_done(6, 6, None, harness.now()))
    harness.grants = True
    harness.do(harness.coordinator.lease_done(7, None, None, harness.now()))
    harness.wait(names.FIRST_START_SECONDS - 1)
    assert (harness.coordinator.outcome, started(harness), harness.leases) == (None, [], [6, 7])
    harness.wait(1)
    assert harness.coordinator.outcome is not None
    assert harness.coordinator.outcome["reason"] == "RestartBudgetSpent"


def test_failure_ends_no_pod_before_a_majority_holds_it() -> None:
    """A leader that dies in between may leave it to a pod that the others can do without."""
    harness = failed_with_a_spare()
    assert (sent(harness, "hold"), sent(harness, "finish")) == ([0, 1, 2], [])
    harness.receive(2, "holds")
    assert sent(harness, "finish") == []
    harness.receive(0, "holds")
    assert sent(harness, "finish") == [0, 1, 2]
    assert sent(harness, "hold") == [0, 1, 2]


def test_failure_ends_those_who_are_there_after_a_minute_without_a_majority() -> None:
    harness = failed_with_a_spare()
    harness.leave(1)
    harness.leave(2)
    harness.receive(0, "holds")
    harness.wait(names.FIRST_START_SECONDS - 1)
    assert sent(harness, "finish") == []
    harness.wait(1)
    assert sent(harness, "finish") == [0]


def test_pod_that_joins_after_the_decision_holds_it_too() -> None:
    harness = failed_with_a_spare()
    harness.leave(2)
    harness.join(2, generation=1)
    assert sent(harness, "hold") == [0, 1, 2, 2]
    harness.receive(2, "holds", generation=1)
    harness.receive(0, "holds")
    assert sent(harness, "finish") == [0, 1, 2]


def test_pod_that_has_ended_holds_the_outcome() -> None:
    harness = failed_with_a_spare()
    harness.receive(2, "finished")
    harness.receive(1, "holds")
    assert sent(harness, "finish") == [0, 1, 2]


def test_operator_reads_no_outcome_that_others_may_not_know(tmp_path: Path) -> None:
    harness = failed_with_a_spare()
    (tmp_path / "key").write_text("5e" * 32)
    environ = {
        "DTJ_JOB": "j", "DTJ_JOB_UID": "uid", "DTJ_ORDINAL": "0", "DTJ_REPLICAS": "2", "DTJ_PEERS": "j-{}.j:29400",
        "DTJ_POD_IP": "10.0.0.7", "DTJ_SECRET_FILE": str(tmp_path / "key"),
    }  # fmt: skip
    page = parse(environ, ["python3", "t.py"])
    assert coordinator_status(page, harness.coordinator, None, harness.now())["outcome"] is None
    harness.receive(0, "holds")
    harness.receive(1, "holds")
    assert coordinator_status(page, harness.coordinator, None, harness.now())["outcome"] is not None


def test_success_and_the_failure_of_a_fixed_group_end_everywhere_at_once() -> None:
    fixed = CoordinatorHarness(2, max_restarts=0)
    for ordinal in (0, 1):
        fixed.join(ordinal)
    fixed.fail(1)
    fixed.stopped(0, 1)
    assert sent(fixed, "finish") == [0, 1]
    spared = with_spare(2, 1)
    for ordinal in (0, 1):
        spared.receive(ordinal, "done", attempt=1, port=21000)
    assert sent(spared, "finish") == [0, 1, 2]
    assert sent(fixed, "hold") == sent(spared, "hold") == []


def test_new_leader_ends_the_job_by_an_outcome_that_is_held() -> None:
    """The leader before it died in the moment of its decision."""
    harness = after_a_loss()
    join(harness, 1)
    assert harness.coordinator.phase_message(harness.now()) == "the job fails in 10 s, unless other pods continue it"
    harness.wait(names.TAKEOVER_SECONDS)
    assert (harness.coordinator.outcome, harness.leases) == (FAILED, [])
    harness.receive(0, "holds")
    harness.receive(1, "holds")
    assert sent(harness, "finish") == [0, 1]


def test_new_leader_ends_the_job_at_once_where_all_pods_are_there() -> None:
    harness = after_a_loss()
    join(harness, 1)
    join(harness, 2)
    assert harness.coordinator.outcome == FAILED


def test_leader_that_is_cut_off_keeps_what_its_pod_holds_for_a_minute() -> None:
    """The others may have begun the next attempt without this pod."""
    harness = after_a_loss()
    harness.wait(names.FIRST_START_SECONDS - 1)
    assert harness.coordinator.outcome is None
    harness.wait(1)
    assert harness.coordinator.outcome == FAILED


def test_wait_of_a_new_leader_begins_again_when_its_majority_has_left() -> None:
    harness = after_a_loss()
    join(harness, 1)
    harness.wait(names.TAKEOVER_SECONDS - 1)
    harness.leave(1)
    harness.wait(2)
    assert harness.coordinator.outcome is None
    harness.wait(names.FIRST_START_SECONDS - names.TAKEOVER_SECONDS - 1)
    assert harness.coordinator.outcome == FAILED


def test_outcome_that_is_held_is_over_once_the_job_has_continued() -> None:
    harness = after_a_loss({**FAILED, "attempt": 4})
    join(harness, 1)
    harness.wait(names.TAKEOVER_SECONDS)
    assert (harness.coordinator.outcome, harness.leases) == (None, [6])


def test_outcome_of_another_job_is_not_taken_over() -> None:
    harness = after_a_loss({**FAILED, "uid": "another"})
    join(harness, 1)
    harness.wait(names.TAKEOVER_SECONDS)
    assert (harness.coordinator.outcome, harness.leases) == (None, [6])


def test_newest_of_two_outcomes_is_taken_over() -> None:
    harness = after_a_loss()
    harness.join(1, attempt=4, held={**FAILED, "attempt": 4})
    harness.wait(names.TAKEOVER_SECONDS)
    assert harness.coordinator.outcome == FAILED


def test_leader_that_finds_a_failure_of_its_own_takes_the_one_that_is_held() -> None:
    """The outcome is the same for all readers."""
    harness = with_spare(2, 1, max_restarts=0)
    harness.leave(2)
    harness.fail(1)
    harness.join(2, generation=1, held={**FAILED, "attempt": 1, "reason": "Decided"})
    harness.stopped(0, 1)
    assert harness.coordinator.outcome is not None
    assert harness.coordinator.outcome["reason"] == "Decided"


# --- a pod that holds an outcome --------------------------------------------------------------------------------------


def member(saved: dict[str, Any], final: dict[str, Any] | None = None) -> Member:
    return Member(Identity("uid", 2, "i2", "j-2", "w2", "10.0.0.2", 5.0), dict(saved), final)


def test_pod_that_holds_an_outcome_lives_and_its_next_agent_reports_it() -> None:
    one = member({"attempt": 5})
    held = [Save(), SendToCoordinator({"type": "holds"})]
    assert one.received({"type": "hold", "outcome": FAILED}, NOW) == held
    again = member(one.saved())
    assert (again.state, again.hello(NOW)["held"], again.hello(NOW)["outcome"]) == ("idle", FAILED, None)
    effects = again.received({"type": "finish", "outcome": FAILED}, NOW)
    assert effects[0] == Finish(FAILED)
    assert effects[-1] == Exit(1)
    assert again.saved()["held"] is None


@pytest.mark.parametrize("kind", ["start", "history"])
def test_outcome_that_is_held_ends_with_a_later_attempt(kind: str) -> None:
    one = member({"attempt": 2, "held": {**FAILED, "attempt": 2}})
    later = past(2)
    later.attempt = 3
    history = {"history": later.to_json()}
    one.received({**START, **history} if kind == "start" else {"type": "history", **history}, NOW)
    assert (one.hello(NOW)["held"], one.saved()["held"]) == (None, None)


def test_pod_that_has_ended_or_knows_a_later_attempt_holds_nothing() -> None:
    ended = member({"attempt": 5}, FAILED)
    assert ended.received({"type": "hold", "outcome": FAILED}, NOW) == [SendToCoordinator({"type": "finished"})]
    later = member({"attempt": 6})
    assert isinstance(later.received({"type": "hold", "outcome": FAILED}, NOW)[0], Log)
    assert later.saved()["held"] is None
