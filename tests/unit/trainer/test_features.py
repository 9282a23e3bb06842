"""Precision, accumulation, recomputation, loaders and EMA keep a training what it is."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dtj_trainer.components.early_stopping import EarlyStop, EarlyStopConfig
from dtj_trainer.components.lr_schedule import ScheduleConfig, batch_factor, factor
from dtj_trainer.data.loader import BatchPartition, LoaderConfig, StreamOrder, batches
from dtj_trainer.data.order import DataOrder
from dtj_trainer.distributed.stop_consensus import steps_to_next_exchange
from dtj_trainer.errors import ConfigError
from tests.unit.trainer.ranks import finished, history, ranks
from tests.unit.trainer.ranks_shared import (
    Numbers,
    Recording,
    bucket_traffic,
    different_rates,
    features,
    out_of_memory,
    own_loop,
    started_by,
    tokens,
)


@pytest.mark.torch
def test_options_keep_the_losses_and_half_precision_stays_close(tmp_path: Path) -> None:
    finished(2, features, tmp_path, str(tmp_path / "out.json"))
    results = json.loads((tmp_path / "out.json").read_text())
    scales = results.pop("scale after overflow")
    overflow, _ = results.pop("overflow")
    reference, validation = results["plain"]
    close = {"bf16", "fp16", "fp16 fsdp", "bf16 weights fsdp", "bf16 hook"}
    for name, (losses, measured) in results.items():
        assert losses == pytest.approx(reference, abs=0.02 if name in close else 1e-6), name
        if not name.startswith("ema"):
            assert measured == pytest.approx(validation, abs=0.05 if name in close else 1e-5), name
    assert results["ema"][1]["loss"] > validation["loss"] + 1e-3, "an average over the beginning of the run lags behind"
    assert results["ema fsdp"][1] == pytest.approx(results["ema"][1], abs=1e-5), (
        "and validating with it trains on without it"
    )
    assert scales == [2.0**57] * 2, "three overflows, halved three times on every rank"
    plain = torch.tensor(overflow)
    assert torch.allclose(plain, plain[0], atol=0.1), "no step was taken"


@pytest.mark.torch
def test_accumulation_sends_each_bucket_once_per_step_and_copies_no_gradient(tmp_path: Path) -> None:
    finished(2, bucket_traffic, tmp_path, str(tmp_path / "out"))
    for rank in range(2):
        outcome = json.loads((tmp_path / f"out-{rank}").read_text())
        assert outcome["buckets"] > 1
        assert outcome["calls"] == 4 * outcome["buckets"]
        assert outcome["views"], "gradients are still views into the buckets"


@pytest.mark.torch
def test_own_loop_with_state_resumes_to_the_bit_after_a_kill(tmp_path: Path) -> None:
    finished(1, own_loop, tmp_path, str(tmp_path / "whole"), 10)
    with ranks(1, own_loop, tmp_path, str(tmp_path / "parts"), 10, True) as group:
        assert group.wait() == [-signal.SIGKILL]
    assert "resumed from step-00000004" in finished(1, own_loop, tmp_path, str(tmp_path / "parts"), 10)
    whole, parts = ([(h["step"], h["loss"]) for h in history(tmp_path / d)] for d in ("whole", "parts"))
    assert parts == whole, "what the loop saved after its fourth step is step 4: no step is lost or done twice"


@pytest.mark.torch
def test_ranks_with_different_configs_name_the_difference_and_exit_with_93(tmp_path: Path) -> None:
    with ranks(2, different_rates, tmp_path) as group:
        assert group.wait() == [93, 93]
    for rank in range(2):
        assert "rank 1 has optimizer.lr=0.2, rank 0 has optimizer.lr=0.1" in group.output(rank)


@pytest.mark.torch
def test_batch_size_search_recovers_from_running_out_of_memory(tmp_path: Path) -> None:
    finished(1, out_of_memory, tmp_path, str(tmp_path / "out.json"))
    outcome = json.loads((tmp_path / "out.json").read_text())
    assert 2 <= outcome["largest"] <= 16
    assert not outcome["one more"]


def partition(rank: int, world: int, batch: int = 12, micro: int | None = None) -> BatchPartition:
    return BatchPartition(global_batch_size=batch, rank=rank, world_size=world, micro_batch_size=micro)


def test_each_sample_comes_once_per_epoch_over_changes_of_world_size() -> None:
    order = DataOrder(length=50, global_batch_size=12, seed=3)
    taken: list[int] = []
    for world in (4, 2, 3, 1, 4, 2, 3, 1):
        for rank in range(world):
            data = Recording(torch.arange(50))
            next(batches(data, order, partition(rank, world, micro=2), LoaderConfig(), seed=3))
            taken += data.given
        order.advance()
    assert sorted(taken[:50]) == list(range(50))
    assert taken[:50] != list(range(50)), "shuffled"
    second = taken[50:96]
    assert len(set(second)) == 46, "the second epoch repeats nothing either"
    assert second != taken[:46], "and has an order of its own"


def test_order_depends_on_the_seed_and_rejects_the_position_of_another_order() -> None:
    first, again, other = (DataOrder(length=20, global_batch_size=5, seed=s) for s in (1, 1, 2))
    assert first.batch(35).tolist() == again.batch(35).tolist()
    assert first.batch(0).tolist() != other.batch(0).tolist()
    with pytest.raises(ConfigError, match="made with seed=1, this run has seed=2"):
        other.load_state_dict(first.state_dict())
    with pytest.raises(ConfigError, match="global_batch_size=2 is less than the 4 ranks: write at least 4"):
        partition(0, 4, batch=2).micro_batches()


@pytest.mark.torch
def test_loader_worker_starts_in_a_test_rank_as_under_torchrun(tmp_path: Path) -> None:
    finished(1, started_by, tmp_path, str(tmp_path / "out.txt"))
    code = "import multiprocessing; print(multiprocessing.get_start_method())"
    alone = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert (tmp_path / "out.txt").read_text() == alone.strip()


@pytest.mark.parametrize("workers", [0, 2])
def test_stream_gives_each_rank_its_share_and_resumes_at_its_position(workers: int) -> None:
    stream, order = Numbers(tokens(30), 60), StreamOrder(global_batch_size=12, position=12)
    expected = [stream.data[i % 30] for i in range(12, 36)]
    for rank in range(2):
        steps = batches(stream, order, partition(rank, 2, micro=4), LoaderConfig(workers=workers), seed=0)
        for number in range(2):
            got = torch.cat([batch[0] for batch, _ in next(steps)])
            mine = expected[number * 12 + rank * 6 : number * 12 + rank * 6 + 6]
            assert torch.equal(got, torch.stack([x for x, _ in mine]))
        del steps
    last = batches(
        stream, StreamOrder(global_batch_size=12, position=60), partition(0, 2), LoaderConfig(workers=workers), seed=0
    )
    with pytest.raises(ConfigError, match="stream of samples has ended"):
        next(last)


@pytest.mark.parametrize(("step", "expected"), [(0, 0.1), (9, 1.0), (10, 1.0), (60, 0.55), (110, 0.1), (500, 0.1)])
def test_rate_rises_linearly_then_falls_as_a_cosine_to_its_floor(step: int, expected: float) -> None:
    config = ScheduleConfig(kind="cosine", warmup_steps=10, floor=0.1)
    assert factor(step, 110, config) == pytest.approx(expected)


def test_rate_between_two_steps_of_the_warm_up_is_at_most_the_full_rate() -> None:
    assert factor(9.5, 110, ScheduleConfig(warmup_steps=10)) == 1.0


def test_rate_scales_with_the_batch_by_its_rule() -> None:
    assert batch_factor(1024, ScheduleConfig(base_batch_size=256)) == 4
    assert batch_factor(1024, ScheduleConfig(base_batch_size=256, batch_rule="sqrt")) == 2
    assert batch_factor(1024, ScheduleConfig()) == 1


def test_early_stop_counts_validations_without_a_new_best_over_a_restart() -> None:
    config = EarlyStopConfig(metric="accuracy", mode="max", patience=2, min_delta=0.01)
    before, after = EarlyStop(config), EarlyStop(config)
    for value in (0.5, 0.7, 0.705):
        before.update({"accuracy": value})
    assert (before.best, before.waited, before.should_stop) == (-0.7, 1, False)
    after.load_state_dict(before.state_dict())
    after.update({"accuracy": 0.6})
    assert after.should_stop
    with pytest.raises(ConfigError, match="write one of \\['loss'\\]"):
        after.update({"loss": math.nan})


@pytest.mark.parametrize(
    ("before", "slowest", "expected", "why"),
    [
        (1, 0.0, 1, "the first step is not measured"),
        (1, 0.001, 2, "at most twice as many"),
        (64, 0.001, 100, "never more than 100"),
        (64, 0.05, 10, "half a second of the slowest step"),
        (100, 20.0, 1, "one slow step, and they meet after the next"),
    ],
)
def test_ranks_exchange_their_status_soon_even_if_steps_become_slow(
    before: int, slowest: float, expected: int, why: str
) -> None:
    assert steps_to_next_exchange(before, slowest, 0.5) == expected, why
