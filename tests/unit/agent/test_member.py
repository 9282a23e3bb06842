"""A member's part: how it follows messages, survives alone, and ends."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_agent.group import member
from dtj_agent.group.member import (
    Exit,
    Finish,
    Forget,
    Identity,
    Log,
    Member,
    Save,
    SendToCoordinator,
    Spawn,
    Stop,
)
from dtj_agent.group.messages import Now, check
from dtj_agent.group.worker_exit import WorkerExit
from dtj_agent.net.auth import Session
from dtj_contract import names

NOW = Now(100.0, 1_790_000_000.0)
START = {
    "type": "start",
    "attempt": 3,
    "nodeRank": 1,
    "nodes": 2,
    "masterAddr": "10.0.0.1",
    "masterPort": 20001,
    "history": {},
}
FINAL = {"uid": "uid", "result": "Failed", "reason": "WorkerFailed", "message": "m", "failure": None, "attempt": 3}


def new(saved: dict[str, Any] | None = None, final: dict[str, Any] | None = None) -> Member:
    return Member(Identity("uid", 1, "i", "j-1", "w", "10.0.0.2", 25.0), saved or {}, final)


def at(state: str) -> Member:
    """Returns a member of attempt 3 with two workers in `state`."""
    one = new()
    one.connected(NOW)
    one.received(START, NOW)
    one.spawned([2, 3])
    if state == "done":
        one.exited(3, [worker(2, 0), worker(3, 0)], NOW)
    elif state in ("stopping", "idle"):
        one.received({"type": "stop", "attempt": 3, "grace": 0.5}, NOW)
    if state in ("done", "idle"):
        one.workers_gone(NOW)
    assert one.state == state
    return one


def worker(rank: int, code: int, requested: bool = False) -> WorkerExit:
    return WorkerExit(rank, code, requested, "tail", False)


def sent(effects: list[member.Effect]) -> list[str]:
    return [check(effect.message)["type"] for effect in effects if isinstance(effect, SendToCoordinator)]


def test_start_is_saved_before_the_ranks_are_spawned() -> None:
    assert new().received(START, NOW) == [Save(), Spawn(3, 1, 2, "10.0.0.1", 20001)]


@pytest.mark.parametrize(("attempt", "granted"), [(3, False), (4, True), (9, True)])
def test_promise_is_given_once_for_numbers_that_are_new_here(attempt: int, granted: bool) -> None:
    one = at("idle")
    answer = {"type": "promised", "attempt": attempt, "granted": granted, "known": 3}
    expected = [SendToCoordinator(answer)]
    assert one.received({"type": "promise", "attempt": attempt}, NOW) == ([Save(), *expected] if granted else expected)
    assert one.saved()["promised"] == (attempt if granted else 0)
    again = one.received({"type": "promise", "attempt": attempt}, NOW)
    assert [effect.message["granted"] for effect in again if isinstance(effect, SendToCoordinator)] == [False]


def test_start_below_a_promise_is_rejected() -> None:
    one = at("idle")
    one.received({"type": "promise", "attempt": 9}, NOW)
    assert sent(one.received({**START, "attempt": 8}, NOW)) == ["failed"]
    assert Spawn(9, 1, 2, "10.0.0.1", 20001) in one.received({**START, "attempt": 9}, NOW)


@pytest.mark.parametrize("character", ["x", "\x1b", "\ufffd", "\U0001f4a5"])
def test_evidence_of_64_failed_workers_fits_one_message(character: str) -> None:
    one = new()
    one.received(START, NOW)
    one.spawned(list(range(64)))
    tail = character * (names.LOG_TAIL_BYTES // len(character.encode()))
    (failed, *_) = one.exited(3, [WorkerExit(rank, 1, False, tail, False) for rank in range(64)], NOW)
    assert isinstance(failed, SendToCoordinator)
    assert Session(b"k" * 32, client=True).seal(check(failed.message))


REJECTED = {
    "an attempt that it knows": (at("idle"), 3),
    "an older one": (at("idle"), 2),
    "while workers run": (at("running"), 4),
    "while workers end": (at("stopping"), 4),
}


@pytest.mark.parametrize(("one", "attempt"), REJECTED.values(), ids=REJECTED)
def test_start_that_can_not_be_followed_is_rejected(one: Member, attempt: int) -> None:
    effects = one.received({**START, "attempt": attempt}, NOW)
    assert [type(effect) for effect in effects] == [Log, SendToCoordinator]


def test_failed_worker_is_reported_and_stops_the_others() -> None:
    one = at("running")
    failed, stop = one.exited(3, [worker(2, -9)], NOW)
    assert isinstance(failed, SendToCoordinator)
    assert failed.message["failures"] == [{"rank": 2, "exitCode": -9, "logTail": "tail", "oom": False}]
    assert stop == Stop(names.STOP_GRACE_SECONDS)
    assert one.exited(3, [worker(3, -15, requested=True)], NOW) == []
    assert sent(one.workers_gone(NOW)) == ["stopped"]


def test_worker_that_failed_just_before_the_stop_is_reported() -> None:
    one = at("stopping")
    assert sent(one.exited(3, [worker(2, 1, requested=False)], NOW)) == ["failed"]


def test_exit_0_of_all_workers_is_done_once_no_process_is_left() -> None:
    one = at("running")
    assert one.exited(3, [worker(2, 0)], NOW) == []
    assert one.exited(3, [worker(3, 0)], NOW) == [Stop(0.0)]
    assert sent(one.workers_gone(NOW)) == ["done"]


def test_exit_0_of_a_stopped_worker_is_not_done() -> None:
    one = at("stopping")
    assert one.exited(3, [worker(2, 0, requested=True), worker(3, 0, requested=True)], NOW) == []
    assert sent(one.workers_gone(NOW)) == ["stopped"]


def test_stop_during_the_cleanup_after_success_is_answered_as_stopped() -> None:
    one = at("running")
    one.exited(3, [worker(2, 0), worker(3, 0)], NOW)
    one.received({"type": "stop", "attempt": 3, "grace": 0.5}, NOW)
    assert sent(one.workers_gone(NOW)) == ["stopped"]


def test_done_member_stops_when_the_group_restarts() -> None:
    one = at("done")
    assert sent(one.received({"type": "stop", "attempt": 3, "grace": 0.5}, NOW)) == ["stopped"]
    assert one.state == "idle"


@pytest.mark.parametrize("state", ["running", "stopping", "idle", "done"])
def test_stop_of_another_attempt_is_dropped(state: str) -> None:
    one = at(state)
    assert one.received({"type": "stop", "attempt": 2, "grace": 0.0}, NOW) == []
    assert one.exited(2, [worker(2, 1)], NOW) == []
    assert one.state == state


LOST = {"running": [names.STOP_GRACE_SECONDS], "stopping": [names.STOP_GRACE_SECONDS], "idle": [], "done": []}


@pytest.mark.parametrize(("state", "stops"), LOST.items(), ids=LOST)
def test_member_without_coordinator_stops_and_reports_it_to_the_next(state: str, stops: list[float]) -> None:
    one = at(state)
    assert [effect.grace for effect in one.disconnected(0.2, NOW) if isinstance(effect, Stop)] == stops
    later = Now(NOW.mono + 8, NOW.wall + 8)
    hello = check(one.hello(later))
    assert (hello["attempt"], hello["interrupted"]["ago"]) == (3, 8.0)


TERMINATED = {
    "running": (["leaving"], [Stop(25.0)], None),
    "stopping": (["leaving"], [Stop(25.0)], None),  # the pod's grace bounds a longer one
    "idle": (["leaving"], [], names.EXIT_TERMINATED),
    "done": (["leaving"], [], names.EXIT_TERMINATED),
}


@pytest.mark.parametrize(("state", "expected"), TERMINATED.items(), ids=TERMINATED)
def test_sigterm_is_announced_and_gives_workers_the_pods_grace(state: str, expected: tuple[Any, ...]) -> None:
    one = at(state)
    effects = one.terminate(NOW)
    exits = [effect.code for effect in effects if isinstance(effect, Exit)]
    assert (sent(effects), [e for e in effects if isinstance(e, Stop)], exits[0] if exits else None) == expected
    if not exits:
        assert Exit(names.EXIT_TERMINATED) in one.workers_gone(NOW)
        assert one.saved()["state"] == "idle"  # no crash


def test_second_sigterm_kills_at_once() -> None:
    one = at("running")
    one.terminate(NOW)
    assert one.terminate(NOW) == [Stop(0.0)]


def test_failure_while_the_pod_terminates_is_not_reported() -> None:
    one = at("running")
    one.terminate(NOW)
    assert sent(one.exited(3, [worker(2, 1)], NOW)) == []


def test_lost_coordinator_does_not_shorten_the_grace_of_a_pod_that_terminates() -> None:
    """All pods of a job that is suspended or deleted end together, and pod 0 may be the first."""
    one = at("running")
    assert Stop(one.identity.grace) in one.terminate(NOW)
    assert not [effect for effect in one.disconnected(0.0, NOW) if isinstance(effect, Stop)]


SAVED = {"running": True, "stopping": True, "idle": False, "done": False}


@pytest.mark.parametrize(("state", "crashed"), SAVED.items(), ids=SAVED)
def test_state_file_shows_that_the_previous_agent_crashed(state: str, crashed: bool) -> None:
    again = new(at(state).saved())
    assert (again.crashed, again.attempt, again.state) == (crashed, 3, "done" if state == "done" else "idle")


def test_restart_of_the_node_is_reported_until_the_next_attempt() -> None:
    again = new({**at("running").saved(), "rebooted": True})
    assert again.hello(NOW)["rebooted"]
    assert not new({**at("idle").saved(), "rebooted": True}).hello(NOW)["rebooted"], "nothing ran"


@pytest.mark.parametrize("state", ["idle", "done"])
def test_outcome_is_written_and_acknowledged_before_the_exit(state: str) -> None:
    one = at(state)
    effects = one.received({"type": "finish", "outcome": FINAL}, NOW)
    assert (effects[0], effects[-1]) == (Finish(FINAL), Exit(1))
    assert sent(effects) == ["finished"]
    assert one.received({"type": "finish", "outcome": FINAL}, NOW) == [SendToCoordinator({"type": "finished"})]


def test_outcome_of_an_earlier_attempt_is_dropped() -> None:
    """The outcome comes from a coordinator that was replaced and does not know it."""
    one = at("idle")
    (log,) = one.received({"type": "finish", "outcome": FINAL | {"attempt": 2}}, NOW)
    assert isinstance(log, Log)
    assert (one.state, one.outcome) == ("idle", None)


def test_outcome_that_the_job_continued_after_is_removed() -> None:
    one = new({"attempt": 3}, FINAL)
    assert one.received({"type": "history", "history": {"attempt": 3, "revision": 9}}, NOW) == [Save()]
    effects = one.received({"type": "history", "history": {"attempt": 4, "revision": 12}}, NOW)
    assert [type(effect) for effect in effects] == [Log, Forget, Save, SendToCoordinator]
    assert sent(effects) == ["stopped"]
    assert (one.state, one.hello(NOW)["outcome"]) == ("idle", None)


def test_outcome_waits_for_running_workers() -> None:
    one = at("running")
    assert one.received({"type": "finish", "outcome": FINAL}, NOW) == [Stop(names.STOP_GRACE_SECONDS)]
    assert Finish(FINAL) in one.workers_gone(NOW)


def test_agent_that_finds_an_outcome_reports_it_as_finished() -> None:
    one = new(final=FINAL)
    hello = check(one.hello(NOW))
    assert (hello["state"], hello["outcome"]) == ("finished", FINAL)
    assert one.received(START, NOW)[0] != Save()
    assert one.terminate(NOW) == [Exit(1)]


def test_member_keeps_the_newest_history_and_progress() -> None:
    one = at("running")
    newer = {**one.history.to_json(), "attempt": 3, "revision": 9, "spent": [1.0]}
    assert one.received({"type": "history", "history": newer}, NOW) == [Save()]
    assert one.received({"type": "history", "history": {"attempt": 3, "revision": 2}}, NOW) == []
    live = {"progress": {"step": 7}, "checkpoint": None, "productiveSeconds": 3.0}
    one.received({"type": "beat", "live": live}, NOW)
    assert (one.hello(NOW)["history"]["spent"], one.hello(NOW)["history"]["progress"]) == ([1.0], {"step": 7})


def test_start_during_a_stop_is_answered_as_failed() -> None:
    one = at("stopping")
    log, answer = one.received(START | {"attempt": 4}, NOW)
    assert isinstance(log, Log)
    assert isinstance(answer, SendToCoordinator)
    assert check(answer.message)["attempt"] == 4
    assert answer.message["failures"][0]["logTail"] == "attempt 4 is not started: this pod is stopping, at attempt 3"
    one.terminate(NOW)
    assert sent(one.received(START | {"attempt": 4}, NOW)) == [], "the end of the connection is the answer"
