"""The example models train through dtj-train by ddp and fsdp, and resume to the bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from dtj_trainer.errors import ConfigError
from dtj_trainer.examples import bert, glyphs, gpt, resnet
from dtj_trainer.examples.images import Glyphs, Gratings
from tests.unit.trainer.ranks import finished, history

STEPS, SAVED = 14, 8
TASKS: dict[str, dict[str, Any]] = {
    "gpt": {"block": 32, "layers": 2, "heads": 2, "width": 32, "dropout": 0.1, "characters": 100_000},
    "bert": {"block": 32, "layers": 2, "heads": 2, "width": 32, "characters": 100_000},
    "resnet": {"depth": 18, "width": 4, "pixels": 16, "images": 256},
    "glyphs": {"model": "mlp", "images": 512},
}
LR = {"gpt": 1e-2, "bert": 1e-2, "resnet": 2e-2, "glyphs": 3e-3}
FALLS_TO = {"gpt": 0.8, "bert": 0.85, "resnet": 0.75, "glyphs": 0.82}
"""The last loss over the first."""
RATES = {"gpt": "tokens", "bert": "tokens", "resnet": "images", "glyphs": "images"}


@pytest.mark.torch
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", TASKS)
def test_model_learns_by_dtj_train_reports_its_rates_and_resumes_to_the_bit(
    tmp_path: Path, name: str, strategy: str
) -> None:
    config = train_yaml(tmp_path, name)
    command = ["dtj_trainer.cli", "--config", str(config), "--strategy", strategy]
    output = finished(2, command, tmp_path, DTJ_CHECKPOINT_DIR=str(tmp_path / "whole"))
    undisturbed = history(tmp_path / "whole")
    losses = [record["loss"] for record in undisturbed]
    assert len(losses) == STEPS
    assert losses[-1] < FALLS_TO[name] * losses[0], losses
    assert f" {RATES[name]}_per_second=" in output
    assert {f"{RATES[name]}_per_second", "mfu"} <= undisturbed[-1].keys()

    shutil.copytree(tmp_path / "whole" / f"step-{SAVED:08d}", tmp_path / "again" / f"step-{SAVED:08d}")
    finished(2, command, tmp_path, DTJ_CHECKPOINT_DIR=str(tmp_path / "again"))
    resumed = history(tmp_path / "again")
    assert [record["step"] for record in resumed] == list(range(SAVED + 1, STEPS + 1))
    assert [record["loss"] for record in resumed] == losses[SAVED:]


def train_yaml(folder: Path, name: str) -> Path:
    """Writes the config of a small model, as a user's train.yaml, and returns its path."""
    path = folder / "train.yaml"
    data = {"data": str(folder)} if "characters" in TASKS[name] else {}
    tree = {
        "task": f"dtj_trainer.examples.{name}:task",
        "arguments": TASKS[name] | data,
        "steps": STEPS,
        "global_batch_size": 32,
        "optimizer": {"lr": LR[name]},
        "state": {"log_every_steps": 1, "checkpoint": {"every_steps": SAVED, "snapshot_every_steps": 0}},
        "telemetry": {"peak_flops": 1e12},
    }
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.mark.torch
def test_weights_of_rank_0_alone_train_as_those_of_all_ranks(tmp_path: Path) -> None:
    losses = []
    for meta in (False, True):
        config = train_yaml(tmp_path, "gpt")
        tree = yaml.safe_load(config.read_text())
        tree["arguments"] |= {"meta": meta, "dropout": 0.0}
        config.write_text(yaml.safe_dump(tree | {"steps": 2, "strategy": "fsdp"}))
        folder = tmp_path / f"meta-{meta}"
        finished(2, ["dtj_trainer.cli", "--config", str(config)], tmp_path, DTJ_CHECKPOINT_DIR=str(folder))
        losses.append([record["loss"] for record in history(folder)])
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_sizes_are_those_of_the_papers() -> None:
    with torch.device("meta"):
        assert parameters(gpt.Gpt(gpt.SIZES["124m"])) == 124_439_040, "GPT-2's with 47 rows of padding"
        assert parameters(bert.Bert(bert.SIZES["base"])) == pytest.approx(110e6, rel=0.01)
        for depth, expected in ((18, 11_689_512), (34, 21_797_672), (50, 25_557_032), (101, 44_549_160)):
            model = resnet.ResNet(resnet.ResNetConfig(depth=depth, pixels=224, classes=1000))
            assert parameters(model) == expected, "torchvision's"


def test_materialized_gpt_is_initialised_and_shares_its_head() -> None:
    torch.manual_seed(3)
    model = gpt.build(gpt.GptConfig(width=64, layers=1))
    assert model.head.weight is model.token.weight
    for name, parameter in model.named_parameters():
        assert parameter.device.type == "cpu"
        if parameter.dim() > 1:
            assert float(parameter.detach().std()) == pytest.approx(0.02, rel=0.1), name
        else:
            assert bool((parameter == (1.0 if "norm" in name and "weight" in name else 0.0)).all()), name


@pytest.mark.parametrize("data", [Glyphs(100), Gratings(100, pixels=16)], ids=["glyphs", "gratings"])
def test_drawn_image_follows_from_its_number_alone(data: Glyphs | Gratings) -> None:
    images, labels = data.get_batch([7, 3, 17])
    assert labels.tolist() == [7, 3, 7]
    again, _ = type(data)(10, first=7, **({"pixels": 16} if isinstance(data, Gratings) else {})).get_batch([0, 10])
    assert torch.equal(again, images[[0, 2]])
    assert not torch.equal(images[0], images[2]), "two images of a class differ"


def test_masked_text_pads_hides_and_keeps_the_rest(tmp_path: Path) -> None:
    task = bert.task(block=64, characters=20_000, data=str(tmp_path), layers=1, width=8, heads=1)
    data: Any = task.data
    batch = data.get_batch(range(40))
    tokens, attended, targets = batch["tokens"], batch["attended"], batch["targets"]
    lengths = attended.sum(1)
    assert len(set(lengths.tolist())) > 10
    assert tokens.shape[1] == int(lengths.max())
    assert bool((tokens[~attended] == bert.MASKED_VOCABULARY - 2).all()), "padding"
    guessed = targets != bert.IGNORED
    assert bool((guessed & ~attended).sum() == 0)
    assert bool((guessed.sum(1) >= 1).all())
    assert float(guessed.sum() / lengths.sum()) == pytest.approx(0.15, abs=0.02)
    hidden = float((tokens[guessed] == bert.MASKED_VOCABULARY - 1).double().mean())
    assert hidden == pytest.approx(0.8, abs=0.1)
    whole = torch.as_tensor(data._tokens[: 40 * 64].reshape(40, 64)[:, : tokens.shape[1]].astype("int64"))
    assert torch.equal(torch.where(guessed, targets, tokens)[attended], whole[attended])


def test_padding_changes_neither_a_sample_s_loss_nor_its_gradient(tmp_path: Path) -> None:
    task = bert.task(block=64, characters=20_000, data=str(tmp_path), layers=2, width=16, heads=2, dropout=0.0)
    data: Any = task.data
    together = bert.loss(task.model, data.get_batch([0, 1, 2, 3]))
    alone = torch.stack([bert.loss(task.model, data.get_batch([i])) for i in range(4)]).mean()
    assert float(together.detach()) == pytest.approx(float(alone.detach()), abs=1e-6)
    (of_together,) = torch.autograd.grad(together, [task.model.get_parameter("place.weight")])
    (of_alone,) = torch.autograd.grad(alone, [task.model.get_parameter("place.weight")])
    assert torch.allclose(of_together, of_alone, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gpt.task(size="1t"), "arguments.size='1t': write tiny, 124m, 355m"),
        (lambda: bert.task(size="large"), "arguments.size='large': write tiny or base"),
        (lambda: resnet.task(depth=20), "arguments.depth=20: write 18, 34, 50, 101"),
        (lambda: resnet.task(pixels=2), "arguments.pixels=2: write 8 or more"),
        (lambda: glyphs.task(model="vit"), "arguments.model='vit': write cnn or mlp"),
    ],
)
def test_wrong_argument_is_named_with_what_to_write(make: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        make()
    assert message in str(error.value)


def test_cnn_learns_drawn_digits() -> None:
    torch.manual_seed(0)
    task = glyphs.task(model="cnn", images=256)
    data: Any = task.data
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=2e-3)
    losses = []
    for step in range(16):
        value = task.loss(task.model, data.get_batch(range(32 * (step % 8), 32 * (step % 8) + 32)))
        optimizer.zero_grad()
        torch.autograd.backward(value)
        optimizer.step()
        losses.append(float(value.detach()))
    assert losses[-1] < 0.7 * losses[0], json.dumps(losses)
