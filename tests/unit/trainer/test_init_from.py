"""A run can begin with weights of a checkpoint or of another program's file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from dtj_trainer.checkpoint.weights import load_weights
from dtj_trainer.errors import CheckpointInvalid, ConfigError
from tests.unit.trainer.ranks import finished
from tests.unit.trainer.ranks_init_from import begin, bytes_from_meta, resume

pytestmark = pytest.mark.torch


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def is_alike(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_runs_begin_where_another_one_ended(tmp_path: Path) -> None:
    finished(2, begin, tmp_path, str(tmp_path))
    results = json.loads((tmp_path / "out.json").read_text())
    begun = [results[f"{kind} {source}"][0] for kind in ("ddp", "fsdp", "meta") for source in ("checkpoint", "file")]
    begun += results["meta auto"]
    assert begun == pytest.approx([begun[0]] * 7, rel=1e-6)
    assert begun[0] < results["trained"][-1] < results["fresh"][0], "the loss continues to fall"
    assert len(results["resumed"]) == 2, "a run that resumes has its own weights and steps"


def test_run_continues_with_the_checkpoint_of_another_one(tmp_path: Path) -> None:
    finished(2, resume, tmp_path, str(tmp_path))
    results = json.loads((tmp_path / "out.json").read_text())
    whole = results["whole"]
    assert len(whole) == 7
    assert results["step 4"] == whole[4:], "bit for bit, and from the same sample on"
    assert len(results["newest"]) == 1, "from step 7"
    assert len(results["again"]) == 1, "a restart has its own step 7, and not the other run's step 4"
    assert (results["at its end"], results["saved at its end"]) == ([], [4.0]), "saved in its own folder"
    assert results["nowhere"].startswith("checkpoint.resume_from=")
    assert results["nowhere"].endswith("nowhere is not a checkpoint and holds none")
    assert "is in this run's own folder, of which it takes the newest: write another" in results["own"]
    assert results["no folder"].endswith("write checkpoint.directory too, for this run's own")
    assert results["torn"].startswith("checkpoint.resume_from="), "and no other checkpoint is taken"
    assert results["left"] == [7.0, 6.0, 4.0], "it is not quarantined"


@pytest.mark.parametrize("kind", ["x.safetensors", "x.pt", "nested.pt", "ddp.pth", "compiled.pt", "folder", "index"])
def test_files_of_other_programs_are_read(tmp_path: Path, kind: str) -> None:
    source, path = net(), tmp_path / kind
    state = source.state_dict()
    if kind == "x.safetensors":
        save_file(state, path)
    elif kind in ("folder", "index"):
        path.mkdir()
        names = sorted(state)
        parts = {"a.safetensors": names[:2], "b.safetensors": names[2:]}
        for file, part in parts.items():
            save_file({name: state[name] for name in part}, path / file)
        if kind == "index":
            save_file({"left": torch.zeros(1)}, path / "old.safetensors")
            places = {name: file for file, part in parts.items() for name in part}
            (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    else:
        prefix = {"ddp.pth": "module.", "compiled.pt": "_orig_mod."}.get(kind, "")
        state = {f"{prefix}{name}": tensor for name, tensor in state.items()}
        torch.save({"model": state, "step": 3} if kind == "nested.pt" else state, path)
    found = net()
    load_weights(found, path)
    assert is_alike(found, source)


def test_tied_weight_may_have_one_name(tmp_path: Path) -> None:
    def tied() -> nn.Module:
        model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
        model[1].weight = model[0].weight
        return model

    source, found = tied(), tied()
    save_file({"0.weight": source.state_dict()["0.weight"]}, tmp_path / "x.safetensors")
    load_weights(found, tmp_path / "x.safetensors")
    assert is_alike(found, source)


def test_weights_that_do_not_fit_are_named_or_left_out(tmp_path: Path) -> None:
    state = net().state_dict() | {"head.weight": torch.zeros(1), "1.weight": torch.zeros(9, 4)}
    del state["0.bias"]
    torch.save(state, tmp_path / "x.pt")
    found = net()
    bias = found[0].bias.detach().clone()
    with pytest.raises(ConfigError) as error:
        load_weights(found, tmp_path / "x.pt")
    message = "it has no weights for 0.bias; other shapes of 1.weight; unknown weights head.weight: write a file of"
    assert message in str(error.value)
    assert "or init_partial: true to load what fits" in str(error.value)
    load_weights(found, tmp_path / "x.pt", partial=True)
    assert torch.equal(found[0].weight, state["0.weight"])
    assert torch.equal(found[0].bias, bias)


@pytest.mark.parametrize(("name", "content", "message"), [
    ("gone.pt", None, "there is no such file or folder"),
    ("x.gguf", b"x", "write a checkpoint's folder, or a .safetensors, .pt or .pth file"),
    ("torn.pt", b"PK\x03\x04torn", "it can't be read"),
    ("old.pt", b"torn", "it can't be read"),
    ("torn.safetensors", b"torn", "it can't be read"),
    ("x.pt", {"step": 3}, "it holds no state dict of tensors"),
    ("y.pt", {"other": torch.zeros(1)}, "unknown weights other"),
])  # fmt: skip
def test_file_that_is_no_model_is_rejected(tmp_path: Path, name: str, content: object, message: str) -> None:
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    for partial in (False, True):
        with pytest.raises(ConfigError) as error:
            load_weights(net(), path, partial=partial)
        assert message in str(error.value)
        assert str(path) in str(error.value)


def test_folder_without_a_checkpoint_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointInvalid, match="is not a checkpoint and holds none"):
        load_weights(net(), tmp_path)


def test_model_that_no_rank_has_built_is_read_into_shards_module_by_module(tmp_path: Path) -> None:
    finished(2, bytes_from_meta, tmp_path, str(tmp_path))
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["differ"] == []
    assert len(found["held"]) > 30, "each tensor is read once"
    assert max(found["held"]) < 0.75 * found["whole"], "shards of the earlier modules, and one module as a whole"


@pytest.mark.parametrize("partial", [False, True])
def test_values_that_a_file_lacks_cannot_be_on_the_meta_device(tmp_path: Path, partial: bool) -> None:
    path = tmp_path / "x.safetensors"
    save_file({name: tensor for name, tensor in net().state_dict().items() if name != "0.bias"}, path)
    with torch.device("meta"):
        model = net()
    with pytest.raises(ConfigError, match=r"0\.bias"):
        load_weights(model, path, partial=partial)
    save_file(net().state_dict(), path)
    model.register_buffer("mask", torch.empty(3, device="meta"), persistent=False)
    with pytest.raises(ConfigError, match="no values for mask, which are on the meta device: build these outside"):
        load_weights(model, path, partial=partial)


def test_tied_weights_on_the_meta_device_need_one_name(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
        model[1].weight = model[0].weight
    save_file({"1.weight": torch.arange(15.0).reshape(5, 3)}, tmp_path / "x.safetensors")
    fill, made = load_weights(model, tmp_path / "x.safetensors"), torch.empty(5, 3)
    assert fill is not None
    fill(model[0].weight, made)
    assert made.flatten().tolist() == list(range(15))
