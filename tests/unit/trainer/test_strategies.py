"""All strategies train alike: the same losses at any world size, ours from scratch like torch's."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from dtj_trainer.strategies import AutoConfig, DdpConfig, FsdpConfig, HsdpConfig, ModelFacts, choose
from tests.unit.trainer.nets import NETS
from tests.unit.trainer.ranks import finished
from tests.unit.trainer.ranks_shared import STRATEGIES, all_strategies
from tests.unit.trainer.ranks_strategies import SCRATCH, SLOW, grouped, odd_models, slow_rank, twice_recomputed, unheld

GIB = 2**30


@pytest.mark.torch
def test_every_strategy_gives_the_same_losses_at_1_2_and_4_ranks(tmp_path: Path) -> None:
    results = {}
    for world in (1, 2, 4):
        finished(world, all_strategies, tmp_path, str(tmp_path / f"{world}.json"), LOCAL_WORLD_SIZE=str(min(world, 2)))
        results[world] = json.loads((tmp_path / f"{world}.json").read_text())
    reference, validation = results[1]["ddp"]
    assert len(reference) == 5
    assert reference[-1] < reference[0] - 0.05, "it learns"
    for world, by_name in results.items():
        assert by_name.keys() == STRATEGIES.keys()
        for name, (losses, measured) in by_name.items():
            assert losses == pytest.approx(reference, abs=1e-6), (world, name)
            assert measured == pytest.approx(validation, abs=1e-5), (world, name)


@pytest.mark.thorough
@pytest.mark.torch
def test_models_of_unusual_shape_train_as_without_a_strategy(tmp_path: Path) -> None:
    """Frozen and shared weights, blocks called twice or not at all, outputs in dicts, dtypes,
    nested lists, buffers, a backward that fails half-way, ..."""
    finished(2, odd_models, tmp_path, str(tmp_path / "out.json"))
    results = json.loads((tmp_path / "out.json").read_text())
    assert results.keys() == NETS.keys() | {"broken off"}
    for name, runs in results.items():
        alone = runs.pop("alone")
        assert runs.keys() >= SCRATCH.keys()
        assert alone["losses"][-1] < alone["losses"][0]
        for strategy, run in runs.items():
            assert run["losses"] == pytest.approx(alone["losses"], abs=1e-6), (name, strategy)
            assert run["evaluated"] == pytest.approx(alone["evaluated"], abs=1e-6), (name, strategy)
            assert run["keys"] == runs["ddp_scratch"]["keys"], (name, strategy, "a checkpoint is the same for all")


@pytest.mark.torch
def test_block_recomputed_twice_reentrantly_trains_or_is_rejected(tmp_path: Path) -> None:
    finished(2, twice_recomputed, tmp_path, str(tmp_path / "out.json"))
    results = json.loads((tmp_path / "out.json").read_text())
    assert results["fsdp_scratch"]["losses"] == pytest.approx(results["alone"]["losses"], abs=1e-6)
    assert "two gradients in one backward" in results["ddp_scratch"]
    assert "use_reentrant=False" in results["ddp_scratch"]


@pytest.mark.torch
def test_parameters_outside_the_optimizer_accumulate_no_gradients_over_steps(tmp_path: Path) -> None:
    finished(2, unheld, tmp_path, str(tmp_path / "out.json"))
    for strategy, norms in json.loads((tmp_path / "out.json").read_text()).items():
        assert norms == pytest.approx([norms[0]] * 3, rel=1e-5), strategy
        assert norms[0] > 0, strategy


@pytest.mark.torch
def test_parameter_groups_keep_their_options_in_a_checkpoint_of_fsdp_scratch(tmp_path: Path) -> None:
    finished(2, grouped, tmp_path, str(tmp_path / "out.json"))
    results = json.loads((tmp_path / "out.json").read_text())
    assert {rate for name, rate in results["rates"].items() if name.startswith("blocks.")} == {0.5}
    assert {rate for name, rate in results["rates"].items() if not name.startswith("blocks.")} == {0.25}
    assert results["loaded"] == [[0.5, 0.0], [0.25, 0.01]]
    assert results["same"]


@pytest.mark.torch
def test_slow_rank_is_named_and_waits_for_it_count_as_communication(tmp_path: Path) -> None:
    finished(2, slow_rank, tmp_path, str(tmp_path / "out.json"))
    for strategy, record in json.loads((tmp_path / "out.json").read_text()).items():
        assert record["slowest_rank"] == 1, strategy
        assert record["imbalance"] > 0.1, strategy
        assert 0 < record["communication_share"] < 1, strategy
        assert 0 <= record["overlap"] <= 1, strategy
        ranks = record["per_rank"]
        assert ranks["exposed_seconds"][0] > ranks["exposed_seconds"][1] + SLOW / 3, (strategy, ranks)
        assert ranks["compute_seconds"][1] > ranks["compute_seconds"][0] + SLOW / 3, (strategy, ranks)
        for rank in range(2):
            parts = [ranks[f"{part}_seconds"][rank] for part in ("data", "compute", "exposed", "checkpoint")]
            assert 0 < sum(parts) <= ranks["step_seconds"][rank], (strategy, rank, ranks)
            assert ranks["exposed_seconds"][rank] <= ranks["communication_seconds"][rank] + 1e-9


@pytest.mark.torch
def test_group_of_one_reports_no_communication(tmp_path: Path) -> None:
    finished(1, slow_rank, tmp_path, str(tmp_path / "out.json"))
    results = json.loads((tmp_path / "out.json").read_text())
    assert len(results) == 5
    for record in results.values():
        assert record["imbalance"] == record["slowest_rank"] == 0
        assert not {"communication_seconds", "exposed_seconds", "communication_share", "overlap"} & record.keys()
        assert math.isfinite(sum(v for v in record.values() if isinstance(v, (int, float))))


@pytest.mark.parametrize(
    ("parameters", "world", "local", "expected"),
    [
        (10_000_000, 8, 8, DdpConfig()),
        (7_000_000_000, 1, 1, DdpConfig()),
        (7_000_000_000, 16, 8, HsdpConfig(shard_size=8)),
        (7_000_000_000, 8, 8, FsdpConfig()),
        (40_000_000_000, 16, 8, FsdpConfig()),
        (400_000_000_000, 16, 8, FsdpConfig(cpu_offload=True)),
    ],
)
def test_auto_chooses_the_least_communication_that_fits_with_a_reason(
    parameters: int, world: int, local: int, expected: DdpConfig | FsdpConfig
) -> None:
    facts = ModelFacts(
        parameters=parameters,
        parameter_bytes=4 * parameters,
        optimizer_bytes_per_parameter=8,
        device_bytes=80 * GIB,
        world_size=world,
        local_world_size=local,
    )
    choice = choose(facts, AutoConfig())
    assert choice.config == expected
    assert f"{parameters:,} parameters" in choice.reason
    assert "GiB" in choice.reason
