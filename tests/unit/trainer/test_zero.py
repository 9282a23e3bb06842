"""ZeRO-1 and ZeRO-2: whole weights, sharded optimizer state, and the results of data parallelism."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from dtj_trainer.communication import CommunicationConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.config_parser import build
from dtj_trainer.errors import ConfigError
from dtj_trainer.strategies import Zero1Config, make
from tests.unit.trainer.ranks import finished
from tests.unit.trainer.ranks_shared import stage
from tests.unit.trainer.ranks_zero import ended, same_bits, traffic


@pytest.mark.torch
def test_two_ranks_train_to_the_bits_of_ddp_scratch(tmp_path: Path) -> None:
    """zero2 adds micro-batches up after each is summed over the ranks, so its last bits may differ there."""
    finished(2, same_bits, tmp_path, str(tmp_path / "out.json"))
    results = json.loads((tmp_path / "out.json").read_text())
    sharded = results.pop("fsdp_scratch")
    assert sharded == pytest.approx(results["sent in bf16"]["zero1"][0], abs=1e-6)
    assert results["sent in bf16"]["zero1"][0] != results["whole share"]["zero1"][0], "the sums lose bits"
    for way, by_name in results.items():
        losses, *digests = by_name["ddp_scratch"]
        assert len(losses) == 5
        for name, (found, *ours) in by_name.items():
            assert len(set(ours)) == 1, f"{way} {name}: all ranks have the same weights"
            assert found == pytest.approx(losses, abs=1e-6), (way, name)
            if (way, name) != ("accumulated", "zero2"):
                assert found == losses, (way, name)
                assert ours == digests, (way, name)


@pytest.mark.torch
def test_zero1_sends_once_a_step_and_zero2_keeps_only_shards_between_micro_batches(tmp_path: Path) -> None:
    finished(2, traffic, tmp_path, str(tmp_path / "out.json"))
    results = json.loads((tmp_path / "out.json").read_text())
    for name, found in results.items():
        padded, held, sent = sum(found["padded"]), found["held"], found["sent"]
        assert len(found["padded"]) > 1
        assert held["moments"] == padded, f"{name}: two moments of half of the parameters"
        assert sent["all_gather"] == 2 * padded, f"{name}: once a step"
        assert sent["all_reduce"] == 0
    whole, buckets = results["zero1"], results["zero2"]
    assert whole["held"]["whole"] == sum(whole["padded"])
    assert whole["held"]["shards"] == 0
    assert whole["sent"]["reduce_scatter"] == 2 * sum(whole["padded"]), "two steps"
    assert buckets["held"]["whole"] <= max(buckets["padded"]), "no bucket but the one in flight"
    assert buckets["held"]["shards"] + max(buckets["padded"]) // 2 >= sum(buckets["padded"]) // 2
    assert buckets["sent"]["reduce_scatter"] == 6 * sum(buckets["padded"]), "two steps of three micro-batches"


@pytest.mark.torch
@pytest.mark.parametrize("strategies", [("ddp", "zero1", "zero2", "ddp"), ("zero2", "zero2", "zero2", "fsdp")])
def test_checkpoints_move_between_world_sizes_and_strategies(tmp_path: Path, strategies: tuple[str, ...]) -> None:
    directory, out, results = str(tmp_path / "checkpoints"), tmp_path / "out.json", []
    for world, strategy, until in zip((2, 1, 4, 2), strategies, (2, 3, 4, 5), strict=True):
        finished(world, stage, tmp_path, directory, strategy, until, str(out))
        results.append(json.loads(out.read_text()))
    assert [each["step"] for each in results] == [0, 2, 3, 4]
    for before, after in itertools.pairwise(results):
        assert after["loaded"] == before["saved"], "model and optimizer, to the bit"
        assert after["loaded"] != after["saved"]


@pytest.mark.torch
def test_run_that_has_ended_resumes_with_whole_weights_on_each_rank(tmp_path: Path) -> None:
    finished(2, ended, tmp_path, str(tmp_path / "out.json"), str(tmp_path / "checkpoints"))
    before, after = json.loads((tmp_path / "out.json").read_text())
    assert after == before
    assert len(set(after)) == 1


@pytest.mark.parametrize("kind", ["zero1", "zero2"])
@pytest.mark.parametrize(("options", "message"), [
    ({"ema_decay": 0.9}, "ema_decay does not work with strategy {kind}: write strategy ddp or fsdp"),
    ({"optimizer": {"decay_vectors": False}}, "decay_vectors: false does not work with strategy {kind}"),
    ({"strategy": {"kind": "{kind}", "bucket_cap_mb": 0}}, "strategy.bucket_cap_mb=0.0: write megabytes above 0"),
])  # fmt: skip
def test_option_that_can_not_work_is_rejected(kind: str, options: dict[str, Any], message: str) -> None:
    tree: dict[str, Any] = {"steps": 1, "strategy": {"kind": kind}} | options
    tree["strategy"] = tree["strategy"] | {"kind": kind}
    with pytest.raises(ConfigError) as error:
        build(TrainerConfig, tree)
    assert message.format(kind=kind) in str(error.value)


def test_compression_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"communication\.method=powersgd does not work with strategy zero1"):
        make(Zero1Config(), None, CommunicationConfig(method="powersgd"))
    with pytest.raises(ConfigError, match=r"communication\.hierarchical: true does not work with strategy zero1"):
        make(Zero1Config(), None, CommunicationConfig(method="bf16", hierarchical=True))
