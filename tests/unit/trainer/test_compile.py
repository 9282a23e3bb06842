"""A compiled model is the same training: losses, checkpoints, what recompute keeps.

Without a compiler a run ends at once.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dtj_trainer.config import TrainerConfig
from dtj_trainer.config_parser import build, override
from dtj_trainer.errors import ConfigError
from tests.unit.trainer.ranks import finished, ranks
from tests.unit.trainer.ranks_compile import MODES, inductor, kept, parts, strategies_compiled


@pytest.mark.torch
def test_compiled_run_has_the_losses_of_an_eager_run_that_can_resume_it(tmp_path: Path) -> None:
    with ranks(2, strategies_compiled, tmp_path, tmp_path) as group:
        assert group.wait() == [0, 0], group.everything()  # 20 seconds of work: more than most
    results = json.loads((tmp_path / "out.json").read_text())
    whole = results.pop("whole")
    assert whole["graphs"] == 0
    assert len(whole["losses"]) == 4
    assert results.keys() == MODES.keys()
    for name, run in results.items():
        assert run["losses"] == pytest.approx(whole["losses"], abs=1e-6), name
        assert run["graphs"] == 1, (name, "all blocks share one")
        assert run["breaks"] == 0, (name, "no hook of a strategy is traced")


@pytest.mark.torch
def test_recompute_saves_memory_in_a_compiled_model_too(tmp_path: Path) -> None:
    finished(1, kept, tmp_path, tmp_path)
    results = json.loads((tmp_path / "out.json").read_text())
    assert results["block"] < results["selective"] / 2 < results["selective"] < results["none"] * 0.8, results


@pytest.mark.torch
def test_layers_of_a_sequential_are_compiled_apart_only_when_sharded(tmp_path: Path) -> None:
    finished(1, parts, tmp_path, tmp_path)
    results = json.loads((tmp_path / "out.json").read_text())
    sharded = ("fsdp", "hsdp", "fsdp_scratch")
    for strategy in ("ddp", "ddp_scratch", *sharded):
        assert results[f"blocks, {strategy}"] == ["blocks.0", "blocks.1"]
        assert results[f"sequential, {strategy}"] == (["0", "3", "6"] if strategy in sharded else [""])
        assert results[f"neither, {strategy}"] == [""]
    assert results["numbered"] == 12, "blocks that differ have a graph each, however many they are"
    assert results["copy"] == [3.0, 3.0], "a deepcopy of a compiled model computes with weights of its own"


@pytest.mark.thorough
@pytest.mark.torch
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs g++ for a CPU")
def test_inductor_trains_a_plain_sequential_as_one_graph(tmp_path: Path) -> None:
    finished(1, inductor, tmp_path, tmp_path)
    results = json.loads((tmp_path / "out.json").read_text())
    assert results["True"]["losses"] == pytest.approx(results["False"]["losses"], abs=1e-4)
    assert (results["False"]["graphs"], results["True"]["graphs"]) == (0, 1)


@pytest.mark.torch
def test_without_a_compiler_the_field_is_named_before_a_rank_waits_for_another(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text("task: dtj_trainer.examples.digits:task\nsteps: 5\ncompile: true\n")
    # Of two ranks one is started: a collective would not end.
    with ranks(1, ["dtj_trainer.cli", "--config", str(file)], tmp_path, PATH=str(tmp_path), WORLD_SIZE="2") as group:
        assert group.wait() == [93], group.everything()
        output = group.output().splitlines()[-1]
    assert output.startswith("ConfigError: compile=True can't compile for cpu here (")
    assert "No working C++ compiler found" in output
    assert output.endswith("take an image with g++ and Python's headers, or write compile: false")


@pytest.mark.parametrize("wrong", ["inductr", "eager", "cudagraphs", 1, {"backend": "inductor"}])
def test_unknown_backend_is_named_with_the_known_ones(wrong: object) -> None:
    with pytest.raises(ConfigError) as e:
        build(TrainerConfig, {"steps": 1, "compile": wrong})
    assert str(e.value) == f"compile={wrong!r}: write true or false or inductor or aot_eager"
    with pytest.raises(ConfigError, match="write true, false, inductor or aot_eager"):
        TrainerConfig(steps=1, compile=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "value"), [("true", True), ("on", True), ("false", False), ("inductor", "inductor")])
def test_the_flag_is_spelled_as_yaml(text: str, value: object) -> None:
    tree: dict[str, object] = {"steps": 1}
    override(tree, ["--compile", text])
    assert build(TrainerConfig, tree).compile == value
