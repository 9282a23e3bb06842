"""A full volume and a volume that hangs are reported and never stop a training silently: on real volumes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtj_trainer.checkpoint import folder
from tests.unit.trainer.ranks import AgentSocket, finished, history, ranks
from tests.unit.trainer.ranks_saves import on_a_volume_that_fills, on_a_volume_that_hangs, unreadable_on_one_rank
from tests.unit.trainer.volume import freezing_volume, small_volume

pytestmark = pytest.mark.torch


def events(agent: AgentSocket) -> list[tuple[str, str]]:
    return [(h["event"]["reason"], h["event"]["message"]) for h in agent.heard if "event" in h]


def whole(directory: Path) -> list[int]:
    """Returns the steps of all checkpoints, after verifying their checksums."""
    found = [folder.read(path) for path in folder.committed(directory)]
    for checkpoint in found:
        folder.verify(checkpoint, checkpoint.manifest.files)
    return [checkpoint.step for checkpoint in found]


def test_full_volume_is_reported_retried_and_used_again_when_there_is_room(tmp_path: Path) -> None:
    with small_volume(tmp_path / "volume", 64) as volume, AgentSocket(tmp_path / "agent") as agent:
        env = {"DTJ_ATTEMPT": "1", "DTJ_AGENT_SOCKET": str(agent.path)}
        finished(2, on_a_volume_that_fills, tmp_path, str(volume), 0, 4 << 20, 32, **env)
        directory = volume / "checkpoints"
        assert whole(directory) == [40, 10]
        assert not list(directory.glob(".incomplete-*"))
        assert [h["step"] for h in history(directory)] == list(range(1, 41)), "each step was done and logged"
    assert [reason for reason, _ in events(agent)] == ["CheckpointFailed"] * 2
    for (_, message), step in zip(events(agent), (20, 30), strict=True):
        assert f"step {step}: rank " in message
        assert "No space left" in message or "MiB free in" in message
        assert "of 64 MiB free in" in message
    assert {h["checkpoint"]["step"] for h in agent.heard if "checkpoint" in h} == {10, 40}


def test_volume_that_stays_full_ends_the_training_with_the_older_checkpoint(tmp_path: Path) -> None:
    with small_volume(tmp_path / "volume", 64) as volume, AgentSocket(tmp_path / "agent") as agent:
        env = {"DTJ_ATTEMPT": "1", "DTJ_AGENT_SOCKET": str(agent.path)}
        with ranks(2, on_a_volume_that_fills, tmp_path, str(volume), 2, 0, 100, **env) as group:
            assert group.wait() == [1, 1], group.everything()
            assert "CheckpointError: 2 checkpoints in a row were not written, the last: step 30" in group.output()
        directory = volume / "checkpoints"
        assert whole(directory) == [10]
        assert not list(directory.glob(".incomplete-*"))
        heard = [reason for reason, _ in events(agent)]
        assert [reason for reason in heard if reason != "SinkFailed"] == ["CheckpointFailed"] * 2
        assert "No space left on device" in group.output()[group.output().index("metrics.jsonl: ") :], (
            "also for this file"
        )
        (volume / "ballast").unlink()
        assert "resumed from step-00000010" in finished(
            2, on_a_volume_that_fills, tmp_path, str(volume), 2, 0, 13, **env
        )
        assert whole(directory) == [40, 30, 20]
        logged = [h["step"] for h in history(directory)]
        assert logged[-30:] == list(range(11, 41))


def test_hanging_volume_blocks_no_step_and_ends_the_training_at_the_deadline(
    tmp_path: Path,
) -> None:
    """A frozen ext4: a write to it blocks in the kernel, where not even SIGKILL ends it.

    The hang is reported once.
    """
    with freezing_volume(tmp_path / "volume", 64) as (volume, switch), AgentSocket(tmp_path / "agent") as agent:

        def steps() -> int:
            return (tmp_path / "steps-0").stat().st_size

        def committed() -> int:
            return sum("checkpoint" in h for h in agent.heard)

        def slow() -> int:
            return [reason for reason, _ in events(agent)].count("CheckpointSlow")

        env = {"DTJ_ATTEMPT": "1", "DTJ_AGENT_SOCKET": str(agent.path)}
        with ranks(2, on_a_volume_that_hangs, tmp_path, str(volume), str(tmp_path / "steps"), 25.0, **env) as group:
            group.wait_until(lambda: committed() > 4)
            switch()
            # Counted while the volume is frozen: a busy machine reports saves before and after that, too.
            before, slow_before = steps(), slow()
            group.wait_until(lambda: steps() > before + 40)
            assert slow() >= 1, "no save has come through for 40 steps"
            assert slow() - slow_before <= 1, "reported once, not at each of the 8 saves that were due"
            switch()
            count = committed()
            group.wait_until(lambda: committed() > count + 1)
            switch()
            group.wait_until(lambda: events(agent)[-1][0] == "CheckpointFailed")
            switch()  # what hangs in the kernel can't end before
            assert group.wait() == [1, 1]
            assert "did not finish a save within 25 s: look at the volume" in events(agent)[-1][1]
            assert all("CheckpointStalled" in group.output(rank) for rank in (0, 1))
        assert whole(volume / "checkpoints")


@pytest.mark.parametrize(
    ("broken", "what"),
    [(0, "committed"), (1, "read"), (0, "verify"), (1, "verify"), (0, "_load_file"), (1, "_load_file")],
)
def test_file_that_one_rank_can_not_read_ends_the_load_on_all_ranks(tmp_path: Path, broken: int, what: str) -> None:
    with ranks(2, unreadable_on_one_rank, tmp_path, str(tmp_path / "checkpoints"), broken, what) as group:
        assert group.wait() == [0, 0], group.everything()
        for rank in range(2):
            assert [line.split(":")[0] for line in group.output(rank).splitlines()] == ["not loaded", "together"]
