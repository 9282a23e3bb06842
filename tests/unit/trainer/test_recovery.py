"""A run that is killed or stopped resumes to the last bit as if nothing had happened."""

from __future__ import annotations

import signal
from itertools import groupby, pairwise
from pathlib import Path

import pytest

from tests.unit.trainer.ranks import AgentSocket, finished, history, ranks

pytestmark = pytest.mark.torch
DIGITS = ["dtj_trainer.examples.digits", "--epochs", "3", "--log-every", "1"]  # 67 steps


def losses(directory: Path) -> dict[int, float]:
    """Returns the losses by step; a step that was repeated must have the same loss twice."""
    out: dict[int, float] = {}
    for line in history(directory):
        assert out.setdefault(line["step"], line["loss"]) == line["loss"], f"another loss the second time: {line}"
    return out


@pytest.mark.parametrize("world", [2, 3])
def test_killed_and_resumed_run_has_the_losses_of_an_undisturbed_one_to_the_bit(tmp_path: Path, world: int) -> None:
    undisturbed, broken = tmp_path / "a", tmp_path / "b"
    whole = finished(world, [*DIGITS, "--checkpoint-dir", str(undisturbed)], tmp_path)
    slow = [*DIGITS, "--checkpoint-dir", str(broken), "--checkpoint-every", "10", "--step-time-ms", "60"]
    with ranks(world, slow, tmp_path) as group:
        # Any checkpoint will do: on a busy machine a save is skipped while the previous one is
        # still being written.
        group.wait_until(lambda: any(broken.glob("step-*")) and len(history(broken)) > 25)
        group.signal(signal.SIGKILL)
        assert group.wait() == [-signal.SIGKILL] * world
    resumed = finished(world, [*DIGITS, "--checkpoint-dir", str(broken)], tmp_path)
    assert "resumed from step-000000" in resumed
    assert losses(broken) == losses(undisturbed)
    assert resumed.splitlines()[-1] == whole.splitlines()[-1], "final loss and accuracy"


def test_sigterm_to_one_rank_saves_the_step_and_stops_all_ranks_with_143(tmp_path: Path) -> None:
    directory, agent = tmp_path / "checkpoints", AgentSocket(tmp_path / "agent")
    command = [*DIGITS, "--checkpoint-dir", str(directory), "--checkpoint-every", "1000", "--step-time-ms", "10"]
    with agent, ranks(2, command, tmp_path, DTJ_ATTEMPT="1", DTJ_AGENT_SOCKET=str(agent.path)) as group:
        group.wait_until(lambda: len(history(directory)) > 5)
        group.processes[1].terminate()
        assert group.wait() == [143, 143]
    last = history(directory)[-1]["step"]
    path = directory / f"step-{last:08d}"
    assert (path / "manifest.json").is_file()
    committed = [h["checkpoint"] for h in agent.heard if "checkpoint" in h]
    assert {(c["step"], c["path"]) for c in committed} == {(last, str(path))}


def test_worker_reports_its_start_each_step_and_its_end_to_the_agent(tmp_path: Path) -> None:
    agent = AgentSocket(tmp_path / "agent")
    with agent:
        finished(2, DIGITS, tmp_path, DTJ_ATTEMPT="1", DTJ_AGENT_SOCKET=str(agent.path))
    assert {(h["attempt"], h["rank"]) for h in agent.heard} == {(1, 0), (1, 1)}
    mine = [h for h in agent.heard if h["rank"] == 0]
    assert [h["resumedStep"] for h in mine if "resumedStep" in h] == [0]
    assert mine[0]["phase"] == "loading"
    assert mine[-1]["phase"] == "done"
    steps = [h for h in mine if h.get("phase") == "training"]
    assert steps[0]["step"] == 1, "the first step is reported at once"
    assert steps[0]["totalSteps"] == 67
    assert {"loss", "samplesPerSecond"} <= steps[0].keys()
    phases = [phase for phase, _ in groupby(h["phase"] for h in mine if "phase" in h)]
    assert phases == ["loading", "compiling", "training", "validating", "training", "done"]


def test_trainer_announces_each_save_before_it_blocks_and_measures_its_own_time(tmp_path: Path) -> None:
    directory, agent = tmp_path / "checkpoints", AgentSocket(tmp_path / "agent")
    command = [*DIGITS, "--checkpoint-dir", str(directory), "--checkpoint-every", "20", "--step-time-ms", "60"]
    with agent:
        finished(2, command, tmp_path, DTJ_ATTEMPT="1", DTJ_AGENT_SOCKET=str(agent.path))
    for rank in (0, 1):
        mine = [h for h in agent.heard if h["rank"] == rank]
        phases = [h.get("phase") for h in mine]
        assert phases.count("saving") >= 4
        assert all(later == "training" for saving, later in pairwise(phases) if saving == "saving" and later)
        own = [h["ownSeconds"] for h in mine if "ownSeconds" in h]
        assert len(own) > 20
        assert all(0 < seconds < 60 for seconds in own)


def test_torn_newest_checkpoint_is_reported_and_the_previous_one_loaded(tmp_path: Path) -> None:
    directory, agent = tmp_path / "checkpoints", AgentSocket(tmp_path / "agent")
    command = [*DIGITS, "--checkpoint-dir", str(directory), "--checkpoint-every", "20"]
    finished(2, command, tmp_path)
    # The first and the last are always there; a save between is skipped while the previous one is
    # still being written.
    *_, before, newest = sorted(path.name for path in directory.glob("step-*"))
    assert newest == "step-00000067"
    file = next((directory / "step-00000067").glob("__1_*"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with agent:
        output = finished(2, command, tmp_path, DTJ_ATTEMPT="2", DTJ_AGENT_SOCKET=str(agent.path))
    assert f"resumed from {before}" in output
    (event,) = [h["event"] for h in agent.heard if "event" in h and h["event"]["reason"] != "CheckpointSlow"]
    assert (event["type"], event["reason"]) == ("Warning", "CheckpointTorn")
    assert "step-00000067" in event["message"]
    assert file.name in event["message"]
    assert (directory / ".torn-step-00000067-a2").is_dir()
    assert (directory / "step-00000067").is_dir(), "made again"
    losses(directory)


def test_checkpoint_of_another_model_is_rejected_with_what_to_do(tmp_path: Path) -> None:
    directory = str(tmp_path / "checkpoints")
    finished(2, [*DIGITS, "--checkpoint-dir", directory], tmp_path)
    with ranks(2, [*DIGITS, "--checkpoint-dir", directory, "--model", "cnn"], tmp_path) as group:
        assert group.wait() == [93, 93]
    assert "does not fit this model and optimizer" in group.output()
    assert "start in a new checkpoint folder" in group.output()


def test_attempt_that_lost_its_lease_commits_nothing_and_exits(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    (directory / "attempt").write_text("1")
    command = [*DIGITS, "--checkpoint-dir", str(directory), "--checkpoint-every", "10", "--step-time-ms", "40"]
    with ranks(2, command, tmp_path, DTJ_ATTEMPT="1") as group:
        group.wait_until(lambda: (directory / "step-00000010").is_dir())
        (tmp_path / "attempt").write_text("2")
        (tmp_path / "attempt").replace(directory / "attempt")  # a rank must not read half of it
        taken_at = history(directory)[-1]["step"]
        codes = group.wait()
    assert all(code not in (0, None) for code in codes)
    assert "attempt 2 owns" in group.everything(), "the rank that notices first reports it"
    newest = max(int(p.name.removeprefix("step-")) for p in directory.glob("step-*"))
    assert newest <= taken_at
