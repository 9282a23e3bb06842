"""`python -m dtj_trainer.measure bench`: every arm does the same work, and its figures have one definition."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from dtj_trainer import ConfigError
from dtj_trainer.distributed.comm_timer import CommStats
from dtj_trainer.measure.__main__ import main
from dtj_trainer.measure.bench import arms
from dtj_trainer.measure.bench.command import parse_model
from dtj_trainer.measure.bench.trial import figures, log_every, run_trial
from dtj_trainer.measure.bench.workloads import mlp, named
from tests.unit.trainer.ranks import finished
from tests.unit.trainer.ranks_bench import ARMS, short_trials


@pytest.mark.torch
def test_arms_have_the_same_loss_and_all_figures(tmp_path: Path) -> None:
    finished(2, short_trials, tmp_path, str(tmp_path / "out.json"))
    trials: list[dict[str, Any]] = json.loads((tmp_path / "out.json").read_text())
    assert [trial["arm"] for trial in trials] == ARMS
    for trial in trials:
        assert trial["loss"] == pytest.approx(trials[0]["loss"], rel=1e-4), trial["arm"]
        assert (trial["world"], len(trial["steps"])) == (2, 6)
        assert 0 < trial["exposed_seconds"] <= trial["communication_seconds"] + 1e-9, trial["arm"]
        assert trial["communication_seconds"] < sum(trial["steps"]), trial["arm"]
        assert 0 < trial["communication_share"] <= 1
        assert 0 <= trial["overlap"] < 1
        assert trial["imbalance"] >= 0
        assert trial["memory_bytes"] > 1e7


def test_single_rank_has_a_trial_without_communication(tmp_path: Path) -> None:
    out = tmp_path / "trial.json"
    small = ["--model", "mlp:width=8", "--batch", "4", "--steps", "2", "--warmup", "1", "--out", str(out)]
    assert main(["bench", "--arm", "torchrun-ddp", *small]) == 0
    found = json.loads(out.read_text())
    assert (found["world"], found["communication_share"], found["overlap"]) == (1, 0.0, None)
    assert found["samples_per_second"] == pytest.approx(4 / (sum(found["steps"]) / 2), rel=1e-3)


def stats(*pairs: tuple[float, float]) -> list[CommStats]:
    return [CommStats(total=total, exposed=exposed) for total, exposed in pairs]


def test_shares_follow_from_the_means_over_ranks() -> None:
    found = figures(
        took=[[1.0, 1.0, 4.0], [1.0, 3.0, 2.0]],
        communication=stats((1.0, 0.5), (2.0, 1.0)),
        memory=[10.0, 30.0],
        batch=6,
    )
    assert found["steps"] == [1.0, 2.0, 3.0]
    assert (found["step_seconds"], found["samples_per_second"], found["memory_bytes"]) == (2.0, 3.0, 30.0)
    assert (found["communication_seconds"], found["exposed_seconds"]) == (1.5, 0.75)
    assert found["communication_share"] == 0.75 / 2
    assert found["overlap"] == 0.5
    assert found["own_seconds"] == [1.5, 1.0]
    assert found["imbalance"] == pytest.approx(1.5 / 1.25 - 1)


@pytest.mark.parametrize("communication", [None, stats((1.0, 0.5), (math.nan, math.nan))])
def test_shares_are_unknown_where_nothing_is_measured(communication: list[CommStats] | None) -> None:
    found = figures(took=[[1.0, 1.0], [1.0, 1.0]], communication=communication, memory=[1.0, 1.0], batch=2)
    assert found["step_seconds"] == 1.0
    assert {found[name] for name in ("communication_share", "overlap", "imbalance", "exposed_seconds")} == {None}


@pytest.mark.parametrize(("warmup", "every"), [(10, 10), (20, 10), (5, 5), (7, 7), (13, 1), (12, 6), (1, 1)])
def test_a_window_of_records_ends_with_the_warm_up(warmup: int, every: int) -> None:
    assert log_every(warmup) == every


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--arm", "zero9"], "--arm zero9: write one of ddp, fsdp"),
        (["--warmup", "0"], "--warmup 0: write 1 or more"),
        (["--steps", "1"], "--steps 1: write 2 or more"),
        (["--model", "vgg"], "--model vgg: write mlp, gpt, resnet"),
        (["--model", "mlp:depth=2"], "--model mlp: there is no size depth; write width, layers"),
        (["--model", "mlp:width=x"], "--model mlp:width=x: write sizes as whole numbers"),
        (["--model", "mlp:width=0"], "--model mlp:width=0: write 1 or more"),
    ],
)
def test_flag_that_can_not_work_is_named(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *flags]) == 93
    assert message in capsys.readouterr().err


def test_batch_that_ranks_can_not_share_evenly_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="--batch 4: write a multiple of the 3 ranks"):
        run_trial("ddp", mlp(8, steps=2, batch=4))


def test_arm_whose_library_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arms, "installed", lambda arm: False)
    with pytest.raises(ConfigError, match="--arm lightning: lightning is not installed here"):
        arms.named("lightning")


def test_sizes_of_a_model_replace_its_defaults() -> None:
    name, sizes = parse_model("gpt:width=32,heads=2,layers=1")
    model = named(name, sizes, batch=2, steps=2, warmup=1).model()
    assert sum(p.numel() for p in model.parameters()) < 100_000


@pytest.mark.parametrize("model", ["mlp", "gpt", "resnet"])
def test_model_is_the_same_each_time_it_is_built(model: str) -> None:
    workload = named(model, {}, batch=2, steps=2, warmup=1)
    first, second = workload.model(), workload.model()
    assert all(a.equal(b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True))
