"""A checkpoint is whole or absent, loads at any world size, and a failing volume never stops the training silently."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import cast

import pytest
import torch

from dtj_trainer.checkpoint import folder
from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.checkpoint.export import export
from dtj_trainer.checkpoint.folder import CommittedCheckpoint, FileEntry, Manifest
from dtj_trainer.checkpoint.quarantine import sweep
from dtj_trainer.checkpoint.retention import RetentionConfig, to_remove
from dtj_trainer.checkpoint.write import Writer
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.errors import CheckpointError, CheckpointInvalid, ConfigError, LeaseLost
from tests.unit.trainer.ranks import finished, ranks
from tests.unit.trainer.ranks_shared import stage


@pytest.mark.torch
@pytest.mark.parametrize(
    "strategies",
    [("fsdp", "fsdp_scratch", "ddp", "ddp_scratch"), ("fsdp_scratch", "fsdp", "fsdp_scratch offload", "ddp")],
)
def test_other_world_sizes_and_strategies_load_exactly_and_use_each_sample_once(
    strategies: tuple[str, ...], tmp_path: Path
) -> None:
    directory, results = tmp_path / "checkpoints", []
    worlds = zip((4, 2, 3, 1), strategies, (2, 3, 4, 5), strict=True)
    for world, strategy, until in worlds:
        finished(world, stage, tmp_path, str(directory), strategy, until, str(tmp_path / "results.json"))
        results.append(json.loads((tmp_path / "results.json").read_text()))
    assert [t["step"] for t in results] == [0, 2, 3, 4]
    for before, after in itertools.pairwise(results):
        assert after["loaded"] == before["saved"], "model and optimizer, to the bit"
        assert after["loaded"] != after["saved"]
    used = sorted(i for t in results for rank in t["used"] for i in rank)
    assert used == list(range(60)), "one epoch: every sample exactly once, over four worlds"
    out = tmp_path / "model.safetensors"
    assert export(directory, out) == export(directory / "step-00000005", tmp_path / "model.pt")
    from safetensors.torch import load_file

    state, plain = load_file(out), torch.load(tmp_path / "model.pt")
    assert state["blocks.0.qkv.weight"].shape == (48, 16)
    assert all(torch.equal(state[k], plain[k]) for k in plain)


@pytest.mark.torch
def test_training_killed_while_it_saves_leaves_a_valid_newest_checkpoint(tmp_path: Path) -> None:
    """100 kills of saves alone are in test_kills.py."""
    directory, chance = tmp_path / "checkpoints", random.Random(5)
    command = ["dtj_trainer.examples.digits", "--model", "cnn", "--epochs", "1000", "--checkpoint-dir", str(directory)]
    step = 0
    for _ in range(3):
        with ranks(2, [*command, "--checkpoint-every", "1"], tmp_path) as group:
            group.wait_until(lambda before=step: _newest(directory) > before)  # type: ignore[misc]
            # The instant of the kill is random: there is no condition to wait for.
            time.sleep(chance.uniform(0, 0.1))
            group.signal(signal.SIGKILL)
            group.wait()
        for path in folder.committed(directory):
            checkpoint = folder.read(path)
            folder.verify(checkpoint, checkpoint.manifest.files)
        assert _newest(directory) > step
        step = _newest(directory)


def _newest(directory: Path) -> int:
    return max((int(p.name.removeprefix("step-")) for p in folder.committed(directory)), default=0)


def _manifest(step: int, **metrics: float) -> Manifest:
    return Manifest(step=step, attempt=1, world_size=1, time=0.0, files={}, metrics=metrics)


def _written(directory: Path, step: int, content: bytes = b"weights") -> tuple[Path, Manifest]:
    incomplete = directory / f".incomplete-step-{step:08d}-a1"
    incomplete.mkdir(parents=True)
    (incomplete / "a").write_bytes(content)
    return incomplete, Manifest(
        step=step,
        attempt=1,
        world_size=1,
        time=1.5,
        files={"a": folder.digest(incomplete / "a")},
        metrics={"loss": 0.5},
    )


def test_manifest_is_parsed_as_it_was_written() -> None:
    manifest = Manifest(
        step=7, attempt=2, world_size=3, time=1.25, files={"a": FileEntry(bytes=1, sha256="f")}, metrics={"loss": 0.1}
    )
    assert Manifest.parse(manifest.dump()) == manifest


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing", "no manifest", "manifest cut"])
def test_torn_checkpoint_is_invalid_however_it_was_torn(tmp_path: Path, damage: str) -> None:
    path = folder.commit(tmp_path, *_written(tmp_path, 5), attempt=None)
    folder.verify(folder.read(path), ["a"])
    manifest = path / "manifest.json"
    match damage:
        case "truncated":
            (path / "a").write_bytes(b"weight")
        case "flipped":
            (path / "a").write_bytes(b"weighus")
        case "missing":
            (path / "a").unlink()
        case "no manifest":
            manifest.unlink()
        case "manifest cut":
            manifest.write_bytes(manifest.read_bytes()[:-9])
    with pytest.raises(CheckpointInvalid):
        folder.verify(folder.read(path), ["a"])


def test_checkpoint_of_a_newer_trainer_is_not_torn(tmp_path: Path) -> None:
    """Otherwise an older image would quarantine all checkpoints by mistake, and begin at step 0."""
    path = folder.commit(tmp_path, *_written(tmp_path, 5), attempt=None)
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 1', '"version": 99'))
    with pytest.raises(ConfigError, match="use the image that wrote"):
        folder.read(path)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ETIMEDOUT])
def test_failing_volume_makes_no_checkpoint_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Otherwise a flaky mount would quarantine all of them, one after the other, and the job would begin at step 0."""
    path = folder.commit(tmp_path, *_written(tmp_path, 5), attempt=None)
    whole = folder.read(path)

    def fail(self: Path, *_: object) -> None:
        raise OSError(number, os.strerror(number), str(self))

    for method in ("open", "read_bytes", "stat"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, method, fail)
            with pytest.raises(CheckpointError, match="can't be read now") as raised:
                folder.verify(whole, ["a"]) if method == "open" else folder.read(path)
            assert not isinstance(raised.value, CheckpointInvalid)


def test_only_the_attempt_in_the_lease_file_commits(tmp_path: Path) -> None:
    (tmp_path / "attempt").write_text("2\n")
    with pytest.raises(LeaseLost, match=r"attempt 2 owns .* this worker of attempt 1"):
        folder.commit(tmp_path, *_written(tmp_path, 5), attempt=1)
    assert folder.committed(tmp_path) == []
    (tmp_path / "attempt").write_text("1")
    assert folder.commit(tmp_path, *_written(tmp_path, 6), attempt=1).name == "step-00000006"
    (tmp_path / "attempt").unlink()
    assert folder.commit(tmp_path, *_written(tmp_path, 7), attempt=1).name == "step-00000007", "no file, no fence"


def test_writer_that_loses_its_lease_just_after_its_rename_removes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt may be loading the checkpoint that retention would remove."""
    folder.commit(tmp_path, *_written(tmp_path, 5), attempt=1)
    config = CheckpointConfig(retention=RetentionConfig(keep_last=1))
    writer = Writer(directory=tmp_path, group=cast(Group, None), config=config, attempt=1)
    (tmp_path / "attempt").write_text("1")
    monkeypatch.setattr(
        folder, "sync_folder", lambda path: (tmp_path / "attempt").write_text("2") if path == tmp_path else None
    )
    with pytest.raises(LeaseLost):
        writer._commit(*_written(tmp_path, 6))
    assert [path.name for path in folder.committed(tmp_path)] == ["step-00000006", "step-00000005"]


def test_older_writer_never_commits_after_the_next_attempt_has_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older writer has checked the lease just before it was taken, and renames at any instant of the sweep."""
    incomplete, manifest = _written(tmp_path, 5)
    real, instants = shutil.rmtree, []

    def rename(path: Path, **options: bool) -> None:
        if path.exists():
            with pytest.raises(FileNotFoundError):
                folder.commit(tmp_path, incomplete, manifest, attempt=None)
            instants.append(path)
        real(path, **options)

    monkeypatch.setattr(shutil, "rmtree", rename)
    sweep(tmp_path, 2)
    assert instants
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("before", [b"weights", b"torn"])
def test_committed_step_is_kept_if_it_is_whole_and_replaced_if_it_is_torn(tmp_path: Path, before: bytes) -> None:
    path = folder.commit(tmp_path, *_written(tmp_path, 5), attempt=None)
    (path / "a").write_bytes(before)
    folder.commit(tmp_path, *_written(tmp_path, 5), attempt=None)
    folder.verify(folder.read(path), ["a"])
    assert not list(tmp_path.glob(".incomplete-*"))


def test_sweep_removes_leftovers_of_earlier_attempts_alone(tmp_path: Path) -> None:
    for name in (
        ".incomplete-step-00000001-a1",
        ".incomplete-step-00000001-a3",
        ".torn-step-00000001-a1",
        ".torn-step-00000001-a2",
    ):
        (tmp_path / name).mkdir()
    sweep(tmp_path, 3)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".incomplete-step-00000001-a3", ".torn-step-00000001-a2"]


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        (RetentionConfig(keep_last=2), [50, 60]),
        (RetentionConfig(keep_last=1, keep_every_steps=30), [30, 60]),
        (RetentionConfig(keep_last=1, keep_best=2), [20, 40, 60]),
        (RetentionConfig(keep_last=1, keep_best=1, metric="accuracy", mode="max"), [30, 60]),
    ],
)
def test_retention_keeps_the_last_the_every_and_the_best(config: RetentionConfig, kept: list[int]) -> None:
    losses = {10: 0.9, 20: 0.1, 30: 0.8, 40: 0.2, 50: 0.7, 60: float("nan")}
    found = [
        CommittedCheckpoint(path=Path(str(s)), manifest=_manifest(s, loss=v, accuracy=0.99 if s == 30 else 0.5))
        for s, v in sorted(losses.items(), reverse=True)
    ]
    gone = {c.step for c in to_remove(found, config)}
    assert sorted(losses.keys() - gone) == kept
