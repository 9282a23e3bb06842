"""The reflector's state machine: when it lists, from where it watches, and how long it pauses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dtj_operator.kube.cache.reflector_state import LAST_SECONDS, ReflectorState

Step = Callable[[ReflectorState], None]


def listed(state: ReflectorState) -> None:
    state.listed("10")


def event(state: ReflectorState) -> None:
    state.advanced("12")


def expired(state: ReflectorState) -> None:
    state.expired()


def failed(state: ReflectorState) -> None:
    state.failed()


def ended(state: ReflectorState) -> None:
    state.ended(400.0)


def cut(state: ReflectorState) -> None:
    state.ended(0.1)


@pytest.mark.parametrize(
    ("steps", "version", "pause"),
    [
        ([], None, 0.0),
        ([listed], "10", 0.0),
        ([listed, event], "12", 0.0),
        ([listed, event, ended], "12", 0.0),
        ([listed, event, cut], "12", 0.5),
        ([listed, event, failed], "12", 0.5),
        ([listed, event, failed, failed, failed], "12", 2.0),
        ([listed, event, failed, failed, event], "12", 0.0),
        ([listed, event, expired], None, 0.0),
        ([listed, expired, listed, expired], None, 1.0),
        ([listed, expired, listed, expired, listed, expired], None, 2.0),
        ([listed, expired, listed, event, expired], None, 0.0),
        ([failed, failed], None, 1.0),
        ([failed] * 60, None, LAST_SECONDS),
    ],
)
def test_next_step_follows_from_what_happened(steps: list[Step], version: str | None, pause: float) -> None:
    state = ReflectorState()
    for step in steps:
        step(state)
    assert (state.version, state.pause(1.0)) == (version, pause)
    assert state.pause(0.0) == pause / 2


def test_failure_after_a_long_watch_is_the_first_of_its_row() -> None:
    state = ReflectorState()
    for _ in range(9):
        state.failed()
    state.failed(100.0)
    assert state.pause(1.0) == 0.5


def test_bookmark_without_a_version_moves_nothing() -> None:
    state = ReflectorState("10")
    state.advanced("")
    assert state.version == "10"
