"""Models of common shapes train by every strategy as they do in one process."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from dtj_trainer.strategies.scratch.call_order import CallOrder
from tests.unit.trainer.nets_common import IMAGES
from tests.unit.trainer.ranks import finished
from tests.unit.trainer.ranks_common_nets import STRATEGIES, bytes_at_wrap, common_nets, from_meta, left_out, recomputed


@pytest.mark.torch
def test_common_nets_by_every_strategy_have_the_losses_of_one_process(tmp_path: Path) -> None:
    results = {}
    for world in (1, 2):
        finished(world, common_nets, tmp_path, str(tmp_path / f"{world}.json"))
        results[world] = json.loads((tmp_path / f"{world}.json").read_text())
    alone = results[1]["ddp"]
    assert alone.keys() == {*IMAGES, "MaskedLm", "VisionTransformer again"}
    for world, by_strategy in results.items():
        assert by_strategy.keys() == STRATEGIES.keys()
        for strategy, by_net in by_strategy.items():
            for net, losses in by_net.items():
                assert len(losses) == 3
                assert losses == pytest.approx(alone[net], abs=1e-5), (world, strategy, net)


@pytest.mark.torch
def test_recompute_of_blocks_in_a_sequential_computes_each_twice(tmp_path: Path) -> None:
    log = finished(1, recomputed, tmp_path, str(tmp_path / "out.json"))
    assert json.loads((tmp_path / "out.json").read_text()) == {"none": 3, "block": 6}, log


@pytest.mark.torch
def test_blocks_that_one_rank_skips_train_as_under_torch_ddp(tmp_path: Path) -> None:
    finished(2, left_out, tmp_path, str(tmp_path / "out.json"))
    results = json.loads((tmp_path / "out.json").read_text())
    assert len(results) == 18
    for name, losses in results.items():
        assert losses == pytest.approx(results[f"ddp {name[-1]}"], abs=1e-6), name


@pytest.mark.torch
def test_wrap_by_fsdp_scratch_frees_each_flat_group_before_the_next(tmp_path: Path) -> None:
    finished(2, bytes_at_wrap, tmp_path, str(tmp_path / "out.json"))
    whole, *after = json.loads((tmp_path / "out.json").read_text())
    assert len(after) == 7, "six blocks and the root"
    assert after == sorted(after, reverse=True)
    assert after[0] < whole, "the first flat group is freed before the second is built"
    assert after[-1] == 0, "nothing is whole when the model is wrapped"


@pytest.mark.torch
def test_fsdp_trains_a_model_that_rank_0_alone_has_built(tmp_path: Path) -> None:
    finished(2, from_meta, tmp_path, str(tmp_path / "out.json"))
    for net, (built, sent) in json.loads((tmp_path / "out.json").read_text()).items():
        assert sent == pytest.approx(built, abs=1e-6), net


@pytest.mark.parametrize("seed", range(20))
def test_blocks_are_gathered_in_one_order_whatever_each_rank_skips(seed: int) -> None:
    draw = random.Random(seed)
    count, world = draw.randint(1, 6), draw.randint(1, 4)
    ranks = [CallOrder(count) for _ in range(world)]
    usual = draw.sample(range(count), count)
    for forward in range(4):
        fetched, rows = [], []
        for calls in ranks:
            calls.begin()
            own: list[int] = []
            for number in usual:
                if forward == 0 or draw.random() < 0.6:
                    own += [*calls.reach(number), number]
            own += calls.rest()
            fetched.append(own)
            rows.append(calls.row())
        if forward:
            assert all(own == usual for own in fetched), "of the first forward all ranks have learnt the order"
        agreed = [calls.agree(rows) for calls in ranks]
        assert all(pair == agreed[0] for pair in agreed)
        everywhere, somewhere = agreed[0]
        assert everywhere == {n for n in range(count) if all(row[n] >= 0 for row in rows)}
        assert everywhere | somewhere == {n for n in range(count) if any(row[n] >= 0 for row in rows)}
