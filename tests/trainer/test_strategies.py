"""All strategies are one training: the same losses at any world size, ours from scratch as torch's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dtj_trainer.strategies import AutoConfig, DdpConfig, Facts, FsdpConfig, HsdpConfig, choose
from tests.trainer.ranks import finished
from tests.trainer.work import STRATEGIES, all_strategies

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
def test_auto_takes_what_sends_least_of_what_fits_and_says_why(
    parameters: int, world: int, local: int, expected: DdpConfig | FsdpConfig
) -> None:
    facts = Facts(
        parameters=parameters,
        parameter_bytes=4 * parameters,
        optimizer_bytes_per_parameter=8,
        device_bytes=80 * GIB,
        world_size=world,
        local_world_size=local,
    )
    choice = choose(facts, AutoConfig())
    assert choice.config == expected
    assert f"{parameters:,} parameters" in choice.why
    assert "GiB" in choice.why
