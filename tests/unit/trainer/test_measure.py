"""`python -m dtj_trainer.measure`: a profile has the gradients that DDP sends, and a link its two numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtj.simulate.profile import Piece, Profile, parse
from dtj_trainer import ConfigError, Task, TrainerConfig
from dtj_trainer.measure.__main__ import main
from dtj_trainer.measure.link import SIZES, fit, ring
from dtj_trainer.measure.rank_profile import measure_rank
from tests.unit.trainer.ranks import finished

TRAIN = "task: dtj_trainer.examples.digits:task\narguments: {model: mlp}\nepochs: 1\nglobal_batch_size: 32\n"


class Rows:
    """Eight samples of four numbers."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index))


def task() -> Task:
    """Returns a model whose last layer has the first gradients, with a frozen layer between."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 3), nn.Linear(3, 2, bias=False))
    model[1].requires_grad_(False)
    return Task(model=model, data=Rows(), loss=lambda model, batch: model(batch).square().mean())


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("alone")
def test_profile_has_the_gradients_in_the_order_of_the_backward_pass() -> None:
    found = measure_rank(task(), TrainerConfig(steps=1, global_batch_size=8), steps=5)
    assert [size for size, _ in found.gradients] == [2 * 3 * 4, 4 * 3 * 4]
    assert 0 < found.gradients[0][1] < found.gradients[1][1] < found.seconds["backward"] * 5
    assert (found.samples, found.micro_batches, found.bucket_bytes) == (8, 1, 25 * 1024 * 1024)
    assert all(seconds > 0 for seconds in found.seconds.values())


@pytest.mark.usefixtures("alone")
def test_profile_counts_the_micro_batches_and_times_the_last_one() -> None:
    found = measure_rank(task(), TrainerConfig(steps=1, global_batch_size=8, micro_batch_size=2), steps=4)
    assert found.micro_batches == 4
    assert len(found.gradients) == 2


@pytest.mark.usefixtures("alone")
def test_profile_of_the_command_is_what_dtj_simulate_reads(tmp_path: Path) -> None:
    config, out = tmp_path / "train.yaml", tmp_path / "profile.json"
    config.write_text(TRAIN)
    given = ["profile", "--config", str(config), "--out", str(out), "--timed-steps", "3", "--global_batch_size", "16"]
    assert main([*given, "--strategy.bucket_cap_mb", "0.01"]) == 0
    profile = parse(out.read_text(), str(out))
    assert (profile.samples, profile.bucket_bytes) == (16, 10485)
    assert "torch" in profile.measured
    assert profile.gradient_bytes == sum(bucket.size for bucket in profile.buckets())


@pytest.mark.usefixtures("alone")
def test_profile_leaves_no_group_and_no_files_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTJ_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    measure_rank(task(), TrainerConfig(steps=1, global_batch_size=8), steps=2)
    assert not dist.is_initialized()
    assert list(tmp_path.iterdir()) == []


def test_profile_beside_other_ranks_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="WORLD_SIZE=2: a profile is that of one rank; start it without torchrun"):
        measure_rank(task(), TrainerConfig(steps=1), steps=2)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["profile", "--config", "CONFIG", "--timed-steps", "1"], "--timed-steps 1: write 2 or more"),
        (["profile", "--config", "none.yaml"], "none.yaml"),
        (["profile", "--config", "CONFIG", "--no_such_field", "1"], "no_such_field"),
        (["link"], "a link needs two ranks: start it on two nodes"),
    ],
)
def test_wrong_flag_of_measure_ends_with_93_and_its_name(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "train.yaml"
    config.write_text(TRAIN)
    assert main([str(config) if part == "CONFIG" else part for part in arguments]) == 93
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("cap", [1, 100, 130, 10_000])
def test_simulated_buckets_are_those_of_ddp(cap: int) -> None:
    sizes = [40, 12, 100, 4, 4, 256, 8]
    tensors = [torch.zeros(size // 4) for size in sizes]
    assigned, _ = dist._compute_bucket_assignment_by_size(tensors, [cap])
    fields: dict[str, Any] = {"samples": 1, "data": 0.0, "forward": 0.0, "backward": 1.0, "optimizer": 0.0}
    own = Profile(**fields, gradients=tuple(Piece(size, 0.0) for size in sizes), bucket_bytes=cap)
    assert [bucket.size for bucket in own.buckets()] == [sum(sizes[at] for at in bucket) for bucket in assigned]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_fit_finds_the_link_that_made_the_times(ranks: int) -> None:
    exact = {size: ring(size, ranks, 50e-6, 25e6) for size in SIZES}
    assert fit(exact, ranks) == pytest.approx((50e-6, 25e6))


def test_fit_of_noisy_times_keeps_a_latency() -> None:
    """Disturbs the longest all-reduce by two hundredths, which without weights would give a latency below 0."""
    disturbed = {size: ring(size, 2, 50e-6, 25e6) for size in SIZES}
    disturbed[SIZES[-1]] *= 1.02
    latency, bandwidth = fit(disturbed, 2)
    assert latency == pytest.approx(50e-6, rel=0.1)
    assert bandwidth == pytest.approx(25e6, rel=0.03)


def test_messages_whose_latency_is_hidden_do_not_raise_the_bandwidth() -> None:
    """Has the milliseconds of a link of 200 Mbit/s that carries 191 as payload."""
    measured = {
        1024: 0.71, 4096: 0.64, 16384: 0.8, 65536: 2.8, 262144: 11.17, 1048576: 43.91, 4194304: 175.29, 8388608: 351.45,
    }  # fmt: skip
    latency, bandwidth = fit({size: took / 1000 for size, took in measured.items()}, 2)
    assert 8 * bandwidth / 1e6 == pytest.approx(191, rel=0.01)
    assert latency == pytest.approx(200e-6, rel=0.1)


def test_fit_never_gives_a_latency_below_zero() -> None:
    latency, bandwidth = fit({1000: 1e-3, 1_000_000: 2.0}, 2)
    assert latency == 0
    assert bandwidth > 0


@pytest.mark.torch
def test_link_between_two_processes_is_written_by_rank_0(tmp_path: Path) -> None:
    out = tmp_path / "link.json"
    finished(2, ["dtj_trainer.measure", "link", "--out", str(out), "--trials", "2"], tmp_path)
    found = json.loads(out.read_text())
    assert (found["ranks"], found["backend"]) == (2, "gloo")
    assert sorted(int(size) for size in found["seconds"]) == sorted(SIZES)
    assert found["bytes_per_second"] > 1e6
    assert found["latency_seconds"] >= 0
