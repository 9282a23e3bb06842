"""A silence that no limit ends is an event with what to do about it, and ends nothing."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_agent.group.hang_watch import HINT_SECONDS, HangSettings, unbounded_silence
from tests.unit.agent.coordinator_harness import CoordinatorHarness
from tests.unit.agent.test_hang_watch import beat, both

DEFAULTS = HangSettings()
LONG, NOT_LONG = {"age": 9e3, "idle": HINT_SECONDS + 1}, {"age": 9e3, "idle": HINT_SECONDS - 1}
SAVING, NO_STEP = {"phase": "saving"}, {"step": None, "phase": ""}
CASES: dict[str, tuple[HangSettings, dict[str, Any], bool]] = {
    "an announced pause": (DEFAULTS, {**LONG, **SAVING}, True),
    "before the first step": (DEFAULTS, {**LONG, **NO_STEP}, True),
    "a script that only reports hangs": (HangSettings("Report"), {**LONG, **SAVING}, True),
    "not for long": (DEFAULTS, {**NOT_LONG, **SAVING}, False),
    "a step a moment ago": (DEFAULTS, {**LONG, **SAVING, "age": 1.0}, False),
    "between two steps, which has a limit": (DEFAULTS, LONG, False),
    "a deadline": (HangSettings(progress_deadline=9e9), {**LONG, **SAVING}, False),
    "off": (HangSettings("Off"), {**LONG, **SAVING}, False),
}


@pytest.mark.parametrize(("settings", "vitals", "found"), CASES.values(), ids=CASES)
def test_silence_without_a_limit_is_found(settings: HangSettings, vitals: dict[str, Any], found: bool) -> None:
    expected = min(vitals["age"], vitals["idle"]) if found else None
    assert unbounded_silence(settings, both(**vitals)) == expected


def test_silent_group_gets_one_hint_and_is_not_ended() -> None:
    group = CoordinatorHarness(2).running()
    beat(group, 0, **LONG, **SAVING)
    group.wait(1.0)
    assert group.coordinator.history.events == [], "the other pod may live"
    for _ in range(3):
        beat(group, 0, **LONG, **SAVING)
        beat(group, 1, **LONG, **SAVING)
        group.wait(1.0)
    (event,) = group.coordinator.history.events
    assert (event["type"], event["reason"]) == ("Warning", "NoSignOfLife")
    assert "for 1801 s in the phase saving" in event["message"]
    assert "spec.progressDeadlineSeconds" in event["message"]
    assert not group.messages("stop")
