"""The rules of the election, one by one; the simulator runs elections among whole groups."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_agent.group.election import (
    DEAD_SECONDS,
    FOLLOWING,
    LEADING,
    REJECTED_SECONDS,
    SEARCHING,
    STAGGER_SECONDS,
    Call,
    Dial,
    Election,
    Lead,
    Leader,
    StepDown,
)


def agent(ordinal: int, epoch: int = 0, attempt: int = 0, life: int = 1) -> Leader:
    return Leader(ordinal, f"{ordinal}.{life}", (f"10.0.{life}.{ordinal}", 29400), epoch, attempt)


def searching(ordinal: int, pods: int = 6) -> Election:
    election = Election(agent(ordinal), pods)
    election.start(0.0)
    return election


def leading(ordinal: int, epoch: int = 0, attempt: int = 0) -> Election:
    election = searching(ordinal)
    election.asked_to_lead(5, "5.1")
    election.knows(attempt, epoch)
    return election


def following(ordinal: int, leader: Leader) -> Election:
    election = searching(ordinal)
    election.called(leader)
    election.joined()
    return election


def test_search_calls_lower_ordinals_first_and_some_higher_ones_last() -> None:
    election = Election(agent(2), 9)
    assert election.start(0.0) == [Call([0])]
    assert election.tick(STAGGER_SECONDS / 2) == []
    assert election.tick(STAGGER_SECONDS) == [Call([1])]
    assert election.failed(0, 0.25) == []
    assert election.failed(1, 0.25) == [Call([3, 4, 5])]
    assert election.tick(0.3) == []
    assert election.tick(0.5) == [Lead(), Dial(agent(2))]


def test_agent_that_is_alone_leads_at_once() -> None:
    assert Election(agent(0), 1).start(0.0) == [Lead(), Dial(agent(0))]


def test_first_pod_of_many_gives_up_the_search_after_a_few_calls() -> None:
    election = Election(agent(400), 512)
    effects = list(election.start(0.0))
    calls = 0
    while not any(isinstance(effect, Lead) for effect in effects):
        calls += sum(len(effect.ordinals) for effect in effects if isinstance(effect, Call))
        effects = [e for ordinal in sorted(election._pending) for e in election.failed(ordinal, 0.0)]
    assert calls == 11


def test_answer_that_names_a_leader_is_followed() -> None:
    election = searching(2)
    assert election.answered(agent(0), agent(4, 3, 3), 0.0) == [Dial(agent(4, 3, 3))]
    assert election.state == SEARCHING
    election.joined()
    assert (election.state, election.leader) == (FOLLOWING, agent(4, 3, 3))


def test_lower_agent_without_a_leader_is_asked_to_lead() -> None:
    assert searching(2).answered(agent(0), None, 0.0) == [Dial(agent(0))]
    assert searching(0).asked_to_lead(2, "2.1") == [Lead(), Dial(agent(0))]


def test_higher_agent_without_a_leader_is_not_asked() -> None:
    election = searching(0)
    assert [election.answered(agent(o), None, 0.0) for o in (1, 2, 3)] == [[], [], [Lead(), Dial(agent(0))]]


@pytest.mark.parametrize(("mine", "theirs", "stays"), [
    ({}, {"ordinal": 0}, False), ({}, {"ordinal": 4}, True),
    ({"attempt": 3}, {"ordinal": 0}, True), ({}, {"ordinal": 4, "attempt": 3}, False),
    ({"attempt": 3, "epoch": 2}, {"ordinal": 0, "attempt": 3}, True),
    ({"attempt": 3}, {"ordinal": 4, "attempt": 3, "epoch": 2}, False),
    ({"attempt": 3, "epoch": 2}, {"ordinal": 4, "attempt": 4}, False),
    ({}, {"ordinal": 2, "life": 0}, True), ({}, {"ordinal": 2, "life": 2}, False),
])  # fmt: skip
@pytest.mark.parametrize("direct", [True, False])
def test_of_two_leaders_the_one_that_is_further_stays(
    direct: bool, mine: dict[str, int], theirs: dict[str, Any], stays: bool
) -> None:
    election, other = leading(2, **mine), agent(**theirs)
    effects = election.called(other) if direct else election.answered(agent(3), other, 0.0)
    assert [type(effect) for effect in effects] == ([] if stays else [StepDown, Dial])
    assert election.state == (LEADING if stays else SEARCHING)
    member = following(3, agent(2, **mine))
    assert member.called(other) == ([] if stays else [Dial(other)])


def test_member_knows_how_far_its_leader_has_come() -> None:
    member = following(3, agent(2))
    member.knows(7, 6)
    assert member.leader == agent(2, 6, 7)
    assert member.called(agent(0, 5, 6)) == []


def test_lost_leader_is_not_followed_on_hearsay_but_called() -> None:
    election = following(2, agent(0, 3, 3))
    assert election.closed(True, 10.0) == [Call([1])]
    assert election.answered(agent(1), agent(0, 3, 3), 10.01) == [Call([0])]
    assert election.failed(0, 10.02) == []
    assert election.tick(10.01 + STAGGER_SECONDS) == [Call([1])]
    assert election.answered(agent(1), agent(1), 10.3) == [Dial(agent(1))]


def test_lost_leader_that_answers_itself_is_followed_again() -> None:
    election = following(2, agent(0, 3, 3))
    election.closed(True, 10.0)
    assert election.answered(agent(0), agent(0, 3, 3), 10.1) == [Dial(agent(0, 3, 3))]


def test_lost_leader_is_forgotten_after_a_while() -> None:
    election = following(2, agent(0, 3, 3))
    election.closed(True, 10.0)
    assert election.answered(agent(1), agent(0, 3, 3), 10.0 + DEAD_SECONDS) == [Dial(agent(0, 3, 3))]


def test_new_agent_at_the_address_of_a_leader_is_not_sent_to_itself() -> None:
    election = Election(agent(0), 2)
    election.start(0.0)
    before = agent(0)._replace(incarnation="0.0", epoch=3, attempt=3)
    assert election.answered(agent(1), before, 0.0) == [Lead(), Dial(agent(0))]


def test_rejected_agent_searches_again_after_a_pause() -> None:
    election = searching(1)
    election.called(agent(0, 3, 3))
    assert election.closed(True, 5.0) == []
    assert election.tick(5.0 + REJECTED_SECONDS / 2) == []
    assert election.tick(5.0 + REJECTED_SECONDS) == [Call([0])]


def test_two_agents_that_wait_for_each_other_do_not_wait_for_ever() -> None:
    lower, higher = searching(0), searching(1)
    lower.called(agent(1, 3, 3))
    higher.called(agent(0, 4, 4))
    assert higher.asked_to_lead(0, "0.1") == []
    assert lower.asked_to_lead(1, "1.1") == [Lead(), Dial(agent(0))]


def test_hint_of_the_dialled_agent_is_followed() -> None:
    election = searching(2)
    election.answered(agent(0), None, 0.0)
    assert election.redirected(agent(4, 3, 3), 0.0) == [Dial(agent(4, 3, 3))]
    assert election.redirected(agent(2), 0.0) == []


def test_coordinator_that_gives_up_makes_the_agent_search() -> None:
    election = leading(1, 3, 3)
    assert election.stepped_down("later", 9.0) == [StepDown("later", None), Call([0])]
    assert (election.state, election.leader) == (SEARCHING, None)


def test_agent_whose_pod_terminates_never_leads() -> None:
    election = Election(agent(0), 2)
    election.is_leaving = True
    assert election.start(0.0) == [Call([1])]
    assert election.failed(1, 0.1) == []
    assert election.asked_to_lead(1, "1.1") == []
    assert (election.tick(60.0), election.state) == ([], SEARCHING)


@pytest.mark.parametrize("change", [
    {"ordinal": -1}, {"ordinal": True}, {"epoch": 2**60}, {"attempt": "3"}, {"incarnation": 7},
    {"incarnation": "x" * 999}, {"address": ["h"]}, {"address": ["h", 70000]}, {"address": [1, 2]},
    {"address": "host"}, {"address": None},
])  # fmt: skip
def test_malformed_leader_of_another_agent_is_none(change: dict[str, Any]) -> None:
    leader = agent(1, 2, 3)
    assert Leader.from_json(leader.to_json()) == leader
    assert Leader.from_json({**leader.to_json(), **change}) is None
