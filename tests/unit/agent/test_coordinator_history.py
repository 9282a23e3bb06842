"""The coordinator's memory: sent to members, kept over a crash, bounded, safe against garbage."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dtj_agent.group.coordinator import HISTORY_SECONDS
from dtj_agent.group.history import History
from dtj_contract import names
from tests.unit.agent.coordinator_harness import WALL, CoordinatorHarness


def test_history_change_reaches_every_member() -> None:
    harness = CoordinatorHarness(2).running()
    harness.receive(0, "event", event={"type": "Warning", "reason": "CheckpointTorn", "message": "step 5"})
    assert [ordinal for ordinal, _ in harness.messages("history")] == [0, 1]
    assert harness.messages("history")[0][1]["history"]["events"][-1]["reason"] == "CheckpointTorn"


def test_changes_in_quick_succession_reach_every_member_together() -> None:
    """All members may change the history at the same time, and each change goes to all of them."""
    harness = CoordinatorHarness(2).running()
    for number in range(5):
        harness.receive(0, "event", event={"type": "Warning", "reason": "CheckpointTorn", "message": str(number)})
    assert len(harness.messages("history")) == 2, "the first one is sent at once"
    harness.wait(HISTORY_SECONDS)
    sent = harness.messages("history")
    assert [ordinal for ordinal, _ in sent] == [0, 1] * 2
    assert [event["message"] for event in sent[-1][1]["history"]["events"]] == ["0", "1", "2", "3", "4"]
    harness.wait(60)
    assert len(harness.messages("history")) == 4


def test_new_process_of_pod_0_keeps_the_newest_history() -> None:
    """The process notes its own crash before their copies come; the note makes its copy no newer."""
    copy = History()
    copy.attempt, copy.revision, copy.spent = 1, 3, [WALL]
    newest = History.from_json(copy.to_json())
    newest.event("Warning", "CheckpointTorn", "step 5", WALL)
    newest.spent = []
    harness = CoordinatorHarness(2, history=copy)
    broke = {"attempt": 1, "silence": 0.0, "ago": 1.0, "step": 5}
    harness.join(0, attempt=1, crashed=True, interrupted=broke, history=copy.to_json())
    harness.join(1, attempt=1, interrupted=broke, history=newest.to_json())
    history = harness.messages("start")[-1][1]["history"]
    assert [event["reason"] for event in history["events"]] == ["CheckpointTorn"]
    assert [failure["reason"] for failure in history["failures"]] == ["AgentCrashed"]
    assert len(history["spent"]) == 1, "the checkpoint refilled the budget, and the crash was counted"


@pytest.mark.parametrize("character", ["x", "\x01", "\U0001f4a5"])
def test_longest_history_fits_a_message(character: str) -> None:
    history = History()
    for number in range(names.KEEP_EVENTS):
        history.event("Warning", "r" * 80, character * 500, WALL)
        failure = dict.fromkeys(("pod", "node", "message"), character * 253) | {
            "logTail": character * names.LOG_TAIL_BYTES
        }
        history.failure({**failure, "reason": "WorkerFailed", "attempt": number, "ordinal": 0})
    size = len(json.dumps(history.to_json()))
    assert size < names.MAX_FRAME_BYTES / 2
    assert history.failures[-1]["attempt"] == names.KEEP_EVENTS - 1


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
    "no finite numbers": {
        "attempt": 2,
        "revision": float("nan"),
        "productiveSeconds": float("inf"),
        "eventId": 10**400,
    },
    "foreign objects": {
        "attempt": 2,
        "checkpoint": {"x": 1},
        "failures": [{}],
        "recoveries": [{"x": 1}],
        "events": [{}],
    },
}


@pytest.mark.parametrize("history", GARBAGE.values(), ids=GARBAGE)
def test_coordinator_survives_garbage_from_a_peer(history: dict[str, Any]) -> None:
    harness = CoordinatorHarness(2)
    broke = {"attempt": history["attempt"], "silence": "x", "ago": None, "step": "5"}
    harness.join(0, history=history, interrupted=broke, crashed=True)
    harness.join(1, history=history, interrupted="?")
    assert harness.coordinator.phase == "Running"
    attempt = harness.messages("start")[0][1]["attempt"]
    harness.receive(0, "failed", attempt=attempt, failures=[5, {}, {"rank": "0"}, {"rank": 1, "exitCode": 1}])
    harness.receive(1, "progress", attempt=attempt, progress={"rank": "x", "step": [], "checkpoint": {}, "events": [4]})
    harness.receive(1, "progress", attempt=attempt, progress={"checkpoint": {"step": 1, "path": "p", "time": 1.0}})
    harness.stopped(0, 1, attempt=attempt)
    assert harness.messages("start")[-1][1]["attempt"] == attempt + 1


def test_training_that_a_memory_snapshot_kept_is_productive() -> None:
    harness = CoordinatorHarness(1).running()
    harness.receive(0, "progress", attempt=1, progress={"rank": 0, "resumedStep": 0, "phase": "training"})
    harness.receive(0, "progress", attempt=1, progress={"rank": 0, "checkpoint": {"step": 5, "path": "", "time": 0.0}})
    harness.time += 10
    harness.receive(0, "progress", attempt=1, progress={"rank": 0, "step": 15, "stepped": True})
    harness.fail(0)
    harness.stopped(0)
    before = harness.coordinator.goodput.productive_seconds(harness.now())
    resumed = {"rank": 0, "resumedStep": 14, "resumedFrom": "memory", "phase": "training"}
    for _ in range(2):  # each member's agent reports it
        harness.receive(0, "progress", attempt=2, progress=resumed)
    assert harness.coordinator.goodput.productive_seconds(harness.now()) - before == pytest.approx(9)
    (recovery,) = harness.coordinator.history.recoveries
    assert (recovery["source"], recovery["lostSteps"]) == ("memory", 1)
