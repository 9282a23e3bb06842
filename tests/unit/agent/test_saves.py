"""The budget of a script that reports nothing is refilled when the script has saved something."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from dtj_agent.files import unreported_saves
from dtj_agent.net.loop import Loop
from dtj_contract import names
from tests.lib.waiting import wait_until
from tests.unit.agent.coordinator_harness import CoordinatorHarness
from tests.unit.agent.harness import running


def write(path: Path, time: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (time, time))


def test_newest_file_counts_at_any_depth(tmp_path: Path) -> None:
    assert unreported_saves.newest(str(tmp_path)) == 0.0
    write(tmp_path / "model.pt", 5.0)
    write(tmp_path / "run" / "epoch=1" / "shard" / "__0_0.distcp", 7.0)
    write(tmp_path / "emergency-0", 6.0)
    assert unreported_saves.newest(str(tmp_path)) == 7.0


NOT_SAVED = (
    "attempt", "attempt.7", "logs/j-0.log", "metrics.jsonl", "config.json", "runs/events.out.tfevents.1.host",
    "train.log", ".hydra/x.pt", ".model.pt.swp", "a/b/c/d/e/f/too-deep.pt", "wandb/offline-run-1/run-1.wandb",
    "out/wandb/run-1/files/media/1.npy",
)  # fmt: skip


@pytest.mark.parametrize("name", NOT_SAVED)
def test_files_that_every_start_writes_do_not_count(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, 9.0)
    assert unreported_saves.newest(str(tmp_path)) == 0.0


def test_links_are_not_followed_and_the_scan_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "elsewhere" / "model.pt", 9.0)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "loop").symlink_to(tmp_path / "folder")
    (tmp_path / "folder" / "out").symlink_to(tmp_path / "elsewhere")
    assert unreported_saves.newest(str(tmp_path / "folder")) < 10**12
    monkeypatch.setattr(unreported_saves, "MAX_ENTRIES", 3)
    for n in range(10):
        write(tmp_path / "many" / f"{n}.pt", float(n))
    assert unreported_saves.newest(str(tmp_path / "many")) <= 9.0


def test_missing_folder_reports_nothing(tmp_path: Path) -> None:
    loop = Loop()
    found: list[float] = []
    watch = unreported_saves.SavesWatch(loop, str(tmp_path / "none"), found.append)
    watch.look()
    watch.look()
    wait_until("the watch to be idle", lambda: (loop.later(0.01, lambda: None), loop.run_once(), not watch._busy)[2])
    assert found == []


def spend(harness: CoordinatorHarness, times: int = 1) -> None:
    for _ in range(times):
        attempt = harness.coordinator.history.attempt
        harness.time += 60
        harness.fail(0, -9, attempt=attempt)
        harness.stopped(0, attempt=attempt)


def running_job(**spec: int) -> CoordinatorHarness:
    harness = CoordinatorHarness(1, max_restarts=3, **spec)
    harness.running()
    harness.coordinator.goodput.file_saved(0.0, harness.now())
    return harness


def test_script_that_saves_between_failures_gets_its_budget_back() -> None:
    harness = running_job()
    for turn in range(1, 5):
        spend(harness, 3)
        harness.time += 60
        harness.coordinator.goodput.file_saved(float(turn), harness.now())
        assert harness.coordinator.history.spent == []
    assert harness.coordinator.outcome is None


def test_script_that_saves_nothing_new_fails_when_the_budget_is_spent() -> None:
    harness = running_job()
    harness.coordinator.goodput.file_saved(5.0, harness.now())
    for _ in range(4):
        spend(harness)
        if harness.coordinator.outcome is None:
            harness.time += 60
            harness.coordinator.goodput.file_saved(5.0, harness.now())
    assert harness.coordinator.outcome is not None
    assert harness.coordinator.outcome["reason"] == "RestartBudgetSpent"


def test_files_written_as_an_attempt_begins_refill_nothing() -> None:
    harness = running_job()
    for turn in range(1, 5):
        spend(harness)
        harness.time += 5
        harness.coordinator.goodput.file_saved(float(turn), harness.now())
    assert harness.coordinator.outcome is not None


def test_files_from_before_the_run_refill_nothing() -> None:
    harness = CoordinatorHarness(1, max_restarts=3)
    harness.running()
    spend(harness, 2)
    harness.time += 60
    harness.coordinator.goodput.file_saved(99.0, harness.now())
    assert len(harness.coordinator.history.spent) == 2


def test_script_that_reports_checkpoints_is_not_scanned() -> None:
    harness = running_job()
    assert harness.coordinator.goodput.is_silent
    harness.receive(0, "progress", attempt=1, progress={"rank": 0, "checkpoint": {"step": 5, "path": "p", "time": 1.0}})
    assert not harness.coordinator.goodput.is_silent
    spend(harness, 2)
    harness.coordinator.goodput.file_saved(99.0, harness.now())
    assert len(harness.coordinator.history.spent) == 2


SAVES = """
import os, sys, time
here = os.environ["DTJ_CHECKPOINT_DIR"]
if os.environ["DTJ_ATTEMPT"] == "1":
    time.sleep(1)
    sys.exit(1)
while True:
    open(os.path.join(here, "model.pt"), "w").close()
    time.sleep(0.1)
"""


def test_agent_detects_the_saves_of_a_silent_script(tmp_path: Path) -> None:
    """`spent` stands in the state file, which is written at each change that the members must know."""
    command, volume = [sys.executable, "-c", SAVES], tmp_path / "volume"
    with running(tmp_path, 1, command, DTJ_CHECKPOINT_DIR=str(volume)) as group:
        state = tmp_path / "state-0" / names.STATE_FILE
        wait_until("one counted restart", lambda: state.exists() and '"counted": 1' in state.read_text())
        wait_until("the refill of the budget", lambda: '"spent": []' in state.read_text())
        assert wait_until("a status", group.status)["attempt"] == 2
