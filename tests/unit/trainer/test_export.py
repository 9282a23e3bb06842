"""`python -m dtj_trainer.export`: which checkpoint is taken, and that its weights are whole in the exported file."""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from dtj_contract import names
from dtj_trainer import rank
from dtj_trainer.checkpoint import folder
from dtj_trainer.checkpoint.export import read_part
from dtj_trainer.checkpoint.folder import Manifest
from dtj_trainer.examples import digits
from dtj_trainer.export.__main__ import main
from tests.unit.trainer import export_models
from tests.unit.trainer.export_models import Counting, Tied, net
from tests.unit.trainer.ranks import finished
from tests.unit.trainer.ranks_shared import stage

MODELS = export_models.__name__


def saved(directory: Path, step: int, model: nn.Module) -> Path:
    """Commits a checkpoint of a model and its optimizer, as one rank of the Trainer does."""
    incomplete = directory / f".incomplete-step-{step:08d}-a1"
    incomplete.mkdir(parents=True)
    optimizer = {"state": {"0.weight": {"momentum": torch.ones(4, 3)}}}
    writer = FileSystemWriter(incomplete, single_file_per_rank=True, thread_count=1)
    save({"model": model.state_dict(), "optimizer": optimizer}, storage_writer=writer, no_dist=True)
    files = {path.name: folder.digest(path) for path in incomplete.iterdir()}
    return folder.commit(
        directory, incomplete, Manifest(step=step, attempt=1, world_size=1, time=0.0, files=files), attempt=None
    )


def damage(checkpoint: Path) -> None:
    """Flips a byte of the tensors: sizes stay, checksums differ."""
    (file,) = checkpoint.glob("*.distcp")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)


def metadata(out: Path) -> dict[str, str]:
    with safe_open(out, "pt") as file:
        found: dict[str, str] = file.metadata()
        return found


def error(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Returns the error of an export that is rejected."""
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == names.EXIT_NO_RESTART
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def same(state: dict[str, torch.Tensor], model: nn.Module) -> bool:
    own = model.state_dict()
    return own.keys() == state.keys() and all(torch.equal(state[name], own[name]) for name in own)


def test_newest_checkpoint_of_a_job_becomes_safetensors_with_its_origin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, out, model = tmp_path / "digits", tmp_path / "model.safetensors", net()
    saved(job, 5, nn.Linear(1, 1))
    saved(job, 10, model)
    assert main([str(job), "-o", str(out)]) == 0
    assert same(load_file(out), model), "the model's tensors, and not the optimizer's"
    assert metadata(out) == {"format": "pt", "job": "digits", "step": "10", "torch": str(torch.__version__)}
    assert capsys.readouterr().out.startswith("step 10 of digits: 9 tensors, ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["digits", "model.safetensors"]


def test_older_checkpoint_may_be_named(tmp_path: Path) -> None:
    model, out = net(), tmp_path / "model.safetensors"
    older = saved(tmp_path / "j", 5, model)
    saved(tmp_path / "j", 10, nn.Linear(1, 1))
    assert main([str(older), "-o", str(out)]) == 0
    assert same(load_file(out), model)
    assert metadata(out)["step"] == "5"


def test_damaged_checkpoint_is_skipped_with_a_warning_and_rejected_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    model, out = net(), tmp_path / "model.safetensors"
    saved(tmp_path / "j", 5, model)
    newest = saved(tmp_path / "j", 10, net())
    damage(newest)
    with caplog.at_level(logging.WARNING):
        assert main([str(tmp_path / "j"), "-o", str(out)]) == 0
    assert metadata(out)["step"] == "5"
    assert "step-00000010 is skipped" in caplog.text
    assert "does not have the checksum of the manifest" in error(capsys, newest, "-o", out)
    damage(tmp_path / "j" / "step-00000005")
    assert "holds no complete checkpoint" in error(capsys, tmp_path / "j", "-o", out)


@pytest.mark.parametrize("left", ["incomplete", "no manifest", "no list of tensors"])
def test_half_written_checkpoint_is_no_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], left: str
) -> None:
    job, out = tmp_path / "j", tmp_path / "model.safetensors"
    written = saved(job, 5, net())
    if left == "incomplete":
        written = written.rename(job / ".incomplete-step-00000005-a1")
        (written / names.MANIFEST_FILE).unlink()
        assert "half-written: .incomplete-step-00000005-a1" in error(capsys, job, "-o", out)
    elif left == "no manifest":
        (written / names.MANIFEST_FILE).unlink()
        (written / "shared.pt").touch()
    else:
        (written / names.MANIFEST_FILE).unlink()
        (written / ".metadata").unlink()
    assert "is half-written" in error(capsys, written, "-o", out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "-o", "m.safetensors"], "nowhere: there is no such folder"),
        (["empty", "-o", "m.safetensors"], "is not a checkpoint and holds no complete one"),
        (["j", "-o", "m.bin"], "-o m.bin: end the name in .safetensors"),
        (["j", "-o", "m.safetensors", "--format=torch-export"], "end the name in .pt2"),
        (["j", "-o", "none/m.safetensors"], "there is no folder none"),
        (["j", "-o", "m.pt2"], "--format torch-export: write --model module:function too"),
        (["j", "-o", "m.safetensors", "--part=ema"], "has no part 'ema'; it has model, optimizer"),
    ],
)
def test_wrong_flag_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "j", 5, net())
    (tmp_path / "empty").mkdir()
    assert message in error(capsys, *arguments)


def test_unknown_format_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["j", "-o", "m.onnx", "--format=onnx"])
    assert ended.value.code == 2
    assert "'onnx' (choose from" in capsys.readouterr().err


def test_only_floating_point_tensors_are_cast(tmp_path: Path) -> None:
    out = tmp_path / "model.safetensors"
    saved(tmp_path / "j", 5, net())
    assert main([str(tmp_path / "j"), "-o", str(out), "--dtype=bfloat16"]) == 0
    found = {name: tensor.dtype for name, tensor in load_file(out).items()}
    assert found.pop("1.num_batches_tracked") == torch.int64
    assert set(found.values()) == {torch.bfloat16}


@pytest.mark.torch
def test_shards_of_two_ranks_become_whole_tensors(tmp_path: Path) -> None:
    job, out = tmp_path / "j", tmp_path / "model.safetensors"
    finished(2, stage, tmp_path, str(job), "fsdp", 2, str(tmp_path / "out.json"))
    assert main([str(job), "-o", str(out)]) == 0
    found, (step, whole) = load_file(out), read_part(job)
    assert (step, found.keys()) == (2, whole.keys())
    assert all(torch.equal(found[name], whole[name]) for name in whole)
    assert found["blocks.0.qkv.weight"].shape == (48, 16)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Returns the folder that `rank.save` writes to in this process, and restores the handler that it replaces."""
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("DTJ_CHECKPOINT_DIR", str(tmp_path / "own"))
    yield tmp_path / "own"
    signal.signal(signal.SIGTERM, handler)
    rank._Stop.installed = False


@pytest.mark.parametrize("kind", ["model.pt", "nested.pt", "compiled.pth", "model.safetensors", "dcp"])
def test_checkpoint_of_a_loop_of_ones_own_is_read(own: Path, tmp_path: Path, kind: str) -> None:
    """Writes by `dtj_trainer.rank.save`, which leaves the content to the script."""
    model, out = net(), tmp_path / "out.safetensors"
    state = model.state_dict()

    def write(at: Path) -> None:
        if kind == "dcp":
            save({"model": state, "step": 7}, checkpoint_id=at, no_dist=True)
        elif kind == "model.safetensors":
            from safetensors.torch import save_file

            save_file(state, at / kind)
        else:
            prefix = "_orig_mod." if kind == "compiled.pth" else ""
            content: object = {f"{prefix}{name}": tensor for name, tensor in state.items()}
            torch.save({"model": content, "step": 7} if kind == "nested.pt" else content, at / kind)

    rank.save(7, write, last=True)
    assert main([str(own), "-o", str(out)]) == 0
    assert same(load_file(out), model)
    assert (metadata(out)["job"], metadata(out)["step"]) == ("own", "7")


def test_tied_weight_is_written_under_each_of_its_names(own: Path, tmp_path: Path) -> None:
    model, out = Tied(), tmp_path / "out.safetensors"
    rank.save(1, lambda at: torch.save(model.state_dict(), at / "model.pt"), last=True)
    assert main([str(own), "-o", str(out)]) == 0
    found = Tied()
    found.load_state_dict(load_file(out))
    assert torch.equal(found.head.weight, model.embedding.weight)


class Planted:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("place", ["weights", "list of tensors"])
def test_code_in_a_checkpoint_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str) -> None:
    checkpoint, trap, out = tmp_path / "j" / "step-00000001", tmp_path / "trap", tmp_path / "out.safetensors"
    checkpoint.mkdir(parents=True)
    if place == "weights":
        torch.save({"model": Planted(trap)}, checkpoint / "model.pt")
        pickle.loads(pickle.dumps(Planted(tmp_path / "proof")))
        assert (tmp_path / "proof").is_dir(), "the trap works"
    else:
        (checkpoint / ".metadata").write_bytes(pickle.dumps(Planted(trap)))
    message = error(capsys, checkpoint, "-o", out)
    assert "mkdir" in message
    assert not trap.exists()
    assert not out.exists()


@pytest.mark.parametrize(
    ("spelled", "message"),
    [
        ("digits", "--model digits: write module:function"),
        ("no.such.module:mlp", "importing no.such.module failed: ModuleNotFoundError"),
        (f"{MODELS}:absent", f"{MODELS} has no function absent"),
        (f"{MODELS}:needs_size", "missing a required argument: 'size'; write a function that needs no arguments"),
        (f"{MODELS}:no_module", "gave a str: return a torch.nn.Module"),
    ],
)
def test_factory_that_builds_no_model_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spelled: str, message: str
) -> None:
    saved(tmp_path / "j", 5, net())
    assert message in error(capsys, tmp_path / "j", "-o", tmp_path / "m.pt2", "--model", spelled)


def test_weights_that_do_not_fit_the_model_are_named_up_to_five(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path / "j", 5, nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 9), nn.Linear(9, 1)))
    for out in ("m.pt2", "m.safetensors"):
        message = error(capsys, tmp_path / "j", "-o", tmp_path / out, "--model", f"{MODELS}:net")
        assert "step 5 of j does not fit" in message
        assert "lacks 1.num_batches_tracked, 1.running_mean, 1.running_var, 3.bias, 3.weight;" in message
        assert "has unknown 2.bias, 2.weight;" in message
        assert "has other shapes of 1.bias, 1.weight" in message
        assert not (tmp_path / out).exists()
    saved(tmp_path / "k", 5, nn.Linear(1, 1, bias=False))
    lacking = error(capsys, tmp_path / "k", "-o", tmp_path / "m.pt2", "--model", f"{MODELS}:net")
    named = re.search(r"lacks (.*) and 4 more", lacking)
    assert named, lacking
    assert len(named[1].split(", ")) == 5


def test_program_has_the_models_outputs_for_any_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = digits.mlp().eval(), tmp_path / "model.pt2"
    saved(tmp_path / "digits", 5, model)
    assert main([str(tmp_path / "digits"), "-o", str(out), "--model", "dtj_trainer.examples.digits:mlp"]) == 0
    assert "loaded again, its outputs differ by 0 at most" in capsys.readouterr().out
    extra = {"dtj.json": ""}
    program = torch.export.load(out, extra_files=extra).module()
    images = digits.load()[1].tensors[0][:7]
    assert torch.equal(program(images), model(images)), "the weights of the checkpoint, without dropout"
    assert json.loads(extra["dtj.json"]) == {"job": "digits", "step": "5", "torch": str(torch.__version__)}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["digits", "model.pt2"]


def test_program_may_have_another_dtype(tmp_path: Path) -> None:
    out = tmp_path / "m.pt2"
    saved(tmp_path / "j", 5, net())
    assert main([str(tmp_path / "j"), "-o", str(out), "--model", f"{MODELS}:net", "--dtype=bfloat16"]) == 0
    program = torch.export.load(out).module()
    assert program(torch.zeros(3, 3, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("factory", "message"),
    [("Counting", "the saved program has other outputs than the model"), ("Branching", "torch.export can't export it")],
)
def test_program_that_is_not_the_model_is_not_left_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], factory: str, message: str
) -> None:
    saved(tmp_path / "j", 5, Counting())
    assert message in error(capsys, tmp_path / "j", "-o", tmp_path / "m.pt2", "--model", f"{MODELS}:{factory}")
    assert [path.name for path in tmp_path.iterdir()] == ["j"]


def test_module_without_example_inputs_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path / "j", 5, net())
    message = error(capsys, tmp_path / "j", "-o", tmp_path / "m.pt2", "--model", f"{__name__}:net")
    assert f"{__name__} has no function example_inputs; write one that returns a tuple" in message
