"""Fewer bytes of gradients: nothing is lost, and ranks and resumed runs have the same bits."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dtj_trainer.communication import CommunicationConfig, make_queue
from dtj_trainer.communication.auto import CANDIDATES, SETTLING_STEPS, TRIED_STEPS, choose
from dtj_trainer.communication.compressor import Item
from dtj_trainer.communication.config import LayerRule
from dtj_trainer.communication.power_sgd import PowerSgd, orthonormalize
from dtj_trainer.communication.quantized import dequantize, pack_signs, quantize, unpack_signs
from dtj_trainer.communication.sparse import TopK, largest, pack, packed_bytes, unpack
from dtj_trainer.components.precision import PrecisionConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.config_parser import build
from dtj_trainer.errors import ConfigError
from dtj_trainer.strategies import FsdpConfig, make
from dtj_trainer.strategies.comm_hook import reject_sparse
from tests.unit.trainer.ranks import finished
from tests.unit.trainer.ranks_communication import (
    BUCKETED,
    EXACT,
    OPTIONS,
    broken_off,
    flush,
    other_options,
    own_loop,
    run,
)

pytestmark = pytest.mark.torch
OTHERS = [("ddp", "powersgd"), ("ddp", "topk"), ("ddp_scratch", "int8"), ("ddp_scratch", "onebit"), ("ddp", "randomk")]


def outcomes(out: Path, world: int) -> list[dict[str, Any]]:
    return [json.loads(Path(f"{out}-{rank}").read_text()) for rank in range(world)]


def test_loops_with_different_options_fail_before_the_first_step(tmp_path: Path) -> None:
    """Ranks that send different sizes would wait for each other until the timeout of their group."""
    finished(2, other_options, tmp_path, str(tmp_path / "out"))
    for different, grouped in outcomes(tmp_path / "out", 2):
        assert different.endswith(": rank 1 has communication.rank=5, rank 0 has communication.rank=4"), different
        assert grouped.startswith("ConfigError: compress_gradients sends to all ranks")


@pytest.mark.parametrize(("world", "steps"), [(2, 50), (3, 10)])
def test_what_arrives_and_what_waits_add_up_to_the_exact_gradients(tmp_path: Path, world: int, steps: int) -> None:
    finished(world, flush, tmp_path, str(tmp_path / "out.json"), steps)
    results = json.loads((tmp_path / "out.json").read_text())
    assert results.keys() == {f"{strategy} {method}" for strategy in BUCKETED for method in EXACT}
    for name, result in results.items():
        assert result["residuals"] == 6, (name, "all matrices are compressed, no vector is")
        assert result["gap"] < 5e-6, name
        assert result["alike"], name
        assert result["dropped"] > (0.003 if "int8" in name else 0.1), (name, "this test can fail")


def test_backward_that_fails_half_way_leaves_nothing_in_the_queue(tmp_path: Path) -> None:
    finished(2, broken_off, tmp_path, str(tmp_path / "out.json"))
    assert json.loads((tmp_path / "out.json").read_text()) is True


@pytest.mark.parametrize(("strategy", "method"), OTHERS)
def test_resumed_run_has_the_bits_of_an_undisturbed_one(tmp_path: Path, strategy: str, method: str) -> None:
    """The interruption comes after the warm-up, within the annealing; the resumed run has other buckets."""
    options = OPTIONS | {"method": method, "warmup_steps": 2, "anneal_steps": 8}
    finished(2, run, tmp_path, str(tmp_path / "a"), strategy, options, 8, str(tmp_path / "whole"))
    finished(2, run, tmp_path, str(tmp_path / "b"), strategy, options, 5, str(tmp_path / "half"))
    finished(2, run, tmp_path, str(tmp_path / "b"), strategy, options, 8, str(tmp_path / "rest"), 1.0)
    whole, half, rest = (outcomes(tmp_path / name, 2) for name in ("whole", "half", "rest"))
    for rank in range(2):
        assert rest[rank]["loaded"] == half[rank]["saved"], "each rank has its own residuals"
        assert any(any(elements) for elements in rest[rank]["loaded"].values())
        assert rest[rank]["weights"] == whole[rank]["weights"]
        assert rest[rank]["saved"] == whole[rank]["saved"]
        assert rest[rank]["steps"] == 8
    assert rest[0]["loaded"] != rest[1]["loaded"]


@pytest.mark.parametrize("method", ["powersgd", "topk"])
def test_loop_of_its_own_compresses_by_one_line_and_resumes(tmp_path: Path, method: str) -> None:
    options, folder = OPTIONS | {"method": method}, str(tmp_path / "b")
    finished(2, own_loop, tmp_path, str(tmp_path / "a"), options, 6, str(tmp_path / "whole"))
    finished(2, own_loop, tmp_path, folder, options, 4, str(tmp_path / "half"))
    finished(2, own_loop, tmp_path, folder, options, 6, str(tmp_path / "rest"))
    whole, rest = (json.loads((tmp_path / name).read_text()) for name in ("whole", "rest"))
    assert rest == whole
    assert any(any(elements) for elements in rest["residuals"].values())
    finished(1, own_loop, tmp_path, folder, options, 7, str(tmp_path / "alone"))
    alone = json.loads((tmp_path / "alone").read_text())
    assert not any(any(elements) for elements in alone["residuals"].values()), "a rank that is alone uses them up"


def test_other_world_begins_with_the_mean_of_the_residuals_on_each_rank(tmp_path: Path) -> None:
    folder, options = str(tmp_path / "checkpoints"), OPTIONS | {"method": "topk"}
    finished(3, run, tmp_path, folder, "ddp_scratch", options, 4, str(tmp_path / "three"))
    finished(2, run, tmp_path, folder, "ddp", options, 6, str(tmp_path / "two"))
    finished(1, run, tmp_path, folder, "ddp", options, 7, str(tmp_path / "one"))
    finished(4, run, tmp_path, folder, "ddp", options, 9, str(tmp_path / "four"))
    last = None
    for name, world in (("three", 3), ("two", 2), ("one", 1), ("four", 4)):
        found = outcomes(tmp_path / name, world)
        for rank in range(world):
            assert found[rank]["loaded"].keys() == found[0]["saved"].keys()
            for parameter, elements in found[rank]["loaded"].items():
                expected = 0.0 if last is None else last[parameter]
                assert torch.allclose(torch.tensor(elements), torch.as_tensor(expected), atol=1e-8), (name, parameter)
        means = {}
        for parameter in found[0]["saved"]:
            means[parameter] = torch.tensor([each["saved"][parameter] for each in found]).mean(0)
        last = means
        assert any(mean.any() for mean in means.values()) == (world > 1), "a rank that is alone keeps nothing"
    assert found[0]["steps"] == 9


def test_method_can_change_between_attempts_and_be_added_later(tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoints")
    for until, method in ((2, "none"), (4, "topk"), (6, "powersgd"), (8, "bf16"), (10, "onebit")):
        finished(2, run, tmp_path, folder, "ddp", OPTIONS | {"method": method}, until, str(tmp_path / method))
    topk, powersgd, onebit = (outcomes(tmp_path / name, 2) for name in ("topk", "powersgd", "onebit"))
    assert topk[0]["steps"] == 2, "counted from the step at which the method was added"
    shared = powersgd[1]["loaded"].keys() & topk[1]["saved"].keys()
    assert shared
    assert all(powersgd[1]["loaded"][name] == topk[1]["saved"][name] for name in shared), "residuals are kept"
    assert onebit[0]["steps"] == 2


def test_auto_tries_each_candidate_and_keeps_its_choice_over_restarts(tmp_path: Path) -> None:
    folder, options = str(tmp_path / "checkpoints"), OPTIONS | {"method": "auto"}
    trial = SETTLING_STEPS + len(CANDIDATES) * TRIED_STEPS
    chosen = []
    for until in (5, 5 + trial, 8 + trial):
        finished(2, run, tmp_path, folder, "ddp", options, until, str(tmp_path / f"{until}"))
        found = outcomes(tmp_path / f"{until}", 2)
        assert found[0]["chosen"] == found[1]["chosen"]
        assert found[0]["weights"] == found[1]["weights"]
        chosen.append(found[0]["chosen"])
    assert chosen[0] is None, "an interrupted trial begins again"
    assert chosen[1] in CANDIDATES
    assert chosen[2] == chosen[1]


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [
        ((100, 60, 10), "powersgd"),
        ((100, 60, 58), "bf16"),
        ((100, 98, 96), "none"),
        ((100, 120, 130), "none"),
        ((100, 120, 90), "powersgd"),
    ],
)
def test_candidate_that_changes_more_must_be_worth_it(milliseconds: tuple[float, ...], expected: str) -> None:
    assert choose(dict(zip(CANDIDATES, milliseconds, strict=True))) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "zip"}, "communication.method='zip': write none or auto or fp16 or bf16 or powersgd"),
        ({"method": "powersgd", "rank": 0}, "communication.rank=0: write 1 or more"),
        ({"rules": [{"names": "*.qkv.*", "rank": 0}]}, "rank=0 of '*.qkv.*': write 1 or more"),
        (
            {"rules": [{"name": "*.qkv.*", "rank": 4}]},
            "communication.rules[0].name: no such field; did you mean names?",
        ),
        ({"method": "topk", "ratio": 1.5}, "communication.ratio=1.5: write a share of the elements"),
        ({"warmup_steps": -1}, "communication.warmup_steps=-1: write 0 or more"),
        ({"ratoi": 1}, "communication.ratoi: no such field; did you mean ratio?"),
    ],
)
def test_bad_option_is_rejected_with_what_to_write(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        build(TrainerConfig, {"steps": 1, "communication": options})
    assert message in str(error.value)


def test_combination_that_can_not_work_is_rejected() -> None:
    with pytest.raises(ConfigError, match="does not work with strategy fsdp: write strategy ddp or ddp_scratch"):
        make(FsdpConfig(), None, CommunicationConfig(method="topk"))
    with pytest.raises(ConfigError, match=r"does not work with strategy fsdp: write strategy.reduce_dtype: bf16"):
        make(FsdpConfig(), None, CommunicationConfig(method="bf16"))
    with pytest.raises(ConfigError, match="does not work with precision fp16"):
        TrainerConfig(
            steps=1, precision=PrecisionConfig(dtype="fp16"), communication=CommunicationConfig(method="topk")
        )
    with pytest.raises(ConfigError, match=r"strategy.comm_hook is communication.method now"):
        build(TrainerConfig, {"steps": 1, "strategy": {"kind": "ddp", "comm_hook": "bf16"}})


class Tied(nn.Module):
    """An embedding whose table is the head's weight too, beside a layer and a bag."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.head = nn.Linear(64, 100, bias=False)
        self.tokens = nn.Embedding(100, 64)
        self.head.weight = self.tokens.weight
        self.bag = nn.EmbeddingBag(100, 64)


@pytest.mark.parametrize(("dense", "compressed"), [
    ({}, ["layer.weight"]),
    ({"dense_embeddings": False}, ["bag.weight", "head.weight", "layer.weight"]),
    ({"dense": ["layer.*"]}, []),
    ({"dense_embeddings": False, "dense": ["tokens.*", "bag.*"]}, ["layer.weight"]),
])  # fmt: skip
def test_embeddings_are_sent_as_they_are_under_whatever_name(dense: dict[str, Any], compressed: list[str]) -> None:
    queue = make_queue(Tied(), Alone(), CommunicationConfig(method="topk", **dense))
    assert sorted(queue.rank_tensors()) == compressed


@pytest.mark.parametrize(("options", "message"), [
    ({"dense": ["layers.*"]}, r"communication.dense: 'layers.\*' matches no parameter: .*, such as bag.weight, head"),
    ({"method": "powersgd", "rules": [LayerRule(names="tail.*", rank=2)]}, r"communication.rules: 'tail.\*' matches"),
])  # fmt: skip
def test_pattern_that_matches_no_parameter_is_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_queue(Tied(), Alone(), CommunicationConfig(**{"method": "topk"} | options))
    make_queue(Tied(), Alone(), CommunicationConfig(**options | {"method": "bf16"}))


@pytest.mark.parametrize(("options", "plain_steps"), [
    ({"method": "none"}, 0), ({"method": "bf16"}, 0), ({"method": "int8"}, 0), ({"method": "powersgd"}, 100),
    ({"method": "topk"}, 100), ({"method": "onebit", "warmup_steps": 0}, 0), ({"method": "auto"}, 100),
    ({"method": "auto", "warmup_steps": 300}, 300),
])  # fmt: skip
def test_methods_that_keep_most_of_a_gradient_begin_after_100_plain_steps(
    options: dict[str, Any], plain_steps: int
) -> None:
    assert CommunicationConfig(**options).plain_steps == plain_steps


def test_first_rule_that_matches_a_name_sets_its_rank() -> None:
    rules = [{"names": "blocks.0.*", "rank": 2}, {"names": "*.qkv.*", "rank": 16}]
    config = build(CommunicationConfig, {"method": "powersgd", "rank": 8, "rules": rules})
    names = ("blocks.0.qkv.weight", "blocks.1.qkv.weight", "blocks.1.up.weight")
    assert [config.rank_of(name) for name in names] == [2, 16, 8]
    method = PowerSgd(Alone(), config)
    shapes = {"blocks.0.qkv.weight": (64, 64), "blocks.1.qkv.weight": (64, 64), "blocks.1.up.weight": (64, 32)}
    assert [method.accepts(name, torch.Size(shape)) for name, shape in shapes.items()] == [True, True, True]
    assert not method.accepts("blocks.2.qkv.weight", torch.Size((63, 64))), "16 are too many for a gain"
    flat = torch.zeros(64 * 64 * 2 + 64 * 32)
    items, offset = [], 0
    for name, shape in shapes.items():
        size = math.prod(shape)
        items.append(Item(name, torch.Size(shape), offset, flat[offset : offset + size].view(shape)))
        offset += size
    method.prepare(items, flat)
    assert method.sent_bytes(0) == 4 * (2 * 128 + 16 * 128 + 8 * 96)


def test_ratio_falls_from_a_quarter_to_its_value() -> None:
    config = CommunicationConfig(method="topk", ratio=0.01, anneal_steps=10)
    ratios = [config.ratio_at(step) for step in range(12)]
    assert ratios[0] == 0.25
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[10] == ratios[11] == 0.01


@pytest.mark.parametrize("elements", [7, 65_536, 200_001, 1_000_000])
def test_largest_elements_travel_with_their_places(elements: int) -> None:
    flat = torch.randn(elements, generator=torch.Generator().manual_seed(elements)) ** 3
    count = max(1, elements // 100)
    places = largest(flat, count, step=3)
    assert 0.8 * count <= places.numel() <= count
    assert torch.equal(places, places.unique()), "each once, ascending"
    kept = flat.abs().sort(descending=True).values
    assert flat[places].abs().min() >= kept[min(elements - 1, 2 * count)], "no small one is among them"
    values = torch.zeros(count, dtype=torch.bfloat16)
    values[: places.numel()] = flat[places]
    message = pack(places, values, elements)
    assert message.numel() == packed_bytes(count, elements), "ranks that find fewer send as many bytes"
    got, sent = unpack(message, count, elements)
    assert torch.equal(got, places)
    assert torch.equal(sent, values[: places.numel()])


def test_one_pass_over_memory_selects_what_several_passes_select() -> None:
    drawn = torch.Generator().manual_seed(4)
    shapes = [torch.Size(shape) for shape in ((300, 700), (64, 64), (5, 90_000))]
    offsets = [0, 210_000, 214_096]
    flat = torch.randn(664_096, generator=drawn)
    items = [
        Item(str(shape), shape, offset, flat[offset : offset + shape.numel()].view(shape))
        for shape, offset in zip(shapes, offsets, strict=True)
    ]
    gradients = [torch.randn(shape, generator=drawn) for shape in shapes]
    expected = flat + torch.cat([gradient.reshape(-1) for gradient in gradients])
    method = TopK(Alone(), CommunicationConfig(method="topk"))
    method.prepare(items, flat)
    for step in range(2):
        places = method._select(gradients, 6641, step)
        assert torch.equal(flat, expected)
        assert torch.equal(places, largest(expected, 6641, step))
        assert not any(gradient.any() for gradient in gradients), "the second step has only the residual"


class Alone:
    rank, world_size, local_rank, local_world_size, device = 0, 1, 0, 1, torch.device("cpu")


@pytest.mark.parametrize("fill", [0.0, 1.0])
def test_gradient_of_equal_elements_is_sent_too(fill: float) -> None:
    places = largest(torch.full((1_000_000,), fill), 1000, step=0)
    assert places.numel() <= 1000
    if fill:
        assert places.numel() > 0, "else it would never be sent"


@pytest.mark.parametrize("rank", [0, 1, 3, 8])
def test_rows_become_orthonormal_and_dependent_ones_zero(rank: int) -> None:
    drawn = torch.Generator().manual_seed(rank)
    rows = torch.randn(8, rank, generator=drawn) @ torch.randn(rank, 500, generator=drawn) * 1e-3
    several = torch.stack([rows, torch.zeros_like(rows), rows.flip(0)])
    orthonormalize(several)
    assert not several[1].any()
    gram = several[2] @ several[2].t()
    assert torch.allclose(several[0].t() @ several[0], several[2].t() @ several[2], atol=1e-5), "one space"
    lengths = gram.diagonal().sort(descending=True).values
    assert torch.allclose(lengths[:rank], torch.ones(rank), atol=1e-5)
    assert torch.all(lengths[rank:] < 1e-5)
    assert torch.allclose(gram, torch.diag(gram.diagonal()), atol=1e-5)


def test_gradient_that_is_not_finite_is_sent_and_not_kept() -> None:
    """Kept, it would stop a parameter for ever, and no loss would show it."""
    flat = torch.randn(1_000_000, generator=torch.Generator().manual_seed(2))
    flat[[7, 500_001]] = torch.tensor([math.nan, -math.inf])
    assert {7, 500_001} <= set(largest(flat, 1000, step=0).tolist())
    method = TopK(Alone(), CommunicationConfig(method="topk"))
    method.prepare([Item("w", flat.shape, 0, flat)], flat)
    assert {7, 500_001} <= set(method._select([torch.zeros_like(flat)], 1000, 0).tolist())
    rows = torch.randn(2, 3, 50)
    rows[1, 0, 9] = math.nan
    orthonormalize(rows)
    assert rows[0].isfinite().all()
    assert rows[1].isnan().any()


def test_sparse_gradients_under_ddp_are_rejected_by_the_name_of_the_module() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(10, 4, sparse=True), torch.nn.Linear(4, 4))
    with pytest.raises(ConfigError, match=r"sparse gradients of 0 under ddp: write sparse=False"):
        reject_sparse(model)


def test_levels_and_signs_are_as_near_as_their_digits() -> None:
    rows = torch.randn(3, 1024, generator=torch.Generator().manual_seed(1)) * torch.tensor([[1e-6], [1.0], [0.0]])
    levels, scales = quantize(rows)
    assert torch.all((dequantize(levels, scales) - rows).abs() <= scales.unsqueeze(1) / 2 * 1.001)
    signs = torch.tensor([1.0, -1.0, -1.0, 1.0, 1.0, 1.0, -1.0, 1.0, -1.0] + 7 * [1.0])
    assert torch.equal(unpack_signs(pack_signs(signs)), signs)
