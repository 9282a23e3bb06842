"""A committed checkpoint can be loaded, is of one model, and is what was validated; state that
can't be loaded is named."""

from __future__ import annotations

import datetime
import enum
import fractions
import json
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dtj_trainer.checkpoint import folder
from dtj_trainer.checkpoint.contents import CheckpointState
from dtj_trainer.checkpoint.folder import FileEntry, Manifest
from dtj_trainer.errors import CheckpointError, ConfigError
from tests.unit.trainer import ranks_checkpoint_contents
from tests.unit.trainer.ranks import finished, ranks


@pytest.mark.torch
def test_folder_that_ranks_do_not_share_is_rejected_at_the_start(tmp_path: Path) -> None:
    with ranks(2, ranks_checkpoint_contents.in_folders_of_their_own, tmp_path, str(tmp_path)) as group:
        assert group.wait() == [93, 93], group.everything()
    assert "rank 1 does not see what rank 0 writes there" in group.output(0)
    assert not list(tmp_path.glob("*/checkpoints/*")), "nothing was trained, and the probe is gone"


def test_commit_without_a_file_of_another_rank_is_rejected(tmp_path: Path) -> None:
    incomplete = tmp_path / ".incomplete-step-00000005-a1"
    incomplete.mkdir()
    (incomplete / "__0_0.distcp").write_bytes(b"weights")
    mine = folder.digest(incomplete / "__0_0.distcp")
    for files in ({"__1_0.distcp": FileEntry(bytes=3, sha256="f")}, {"__0_0.distcp": FileEntry(bytes=3, sha256="f")}):
        manifest = Manifest(step=5, attempt=1, world_size=2, time=1.5, files={"__0_0.distcp": mine} | files)
        with pytest.raises(CheckpointError, match="distcp"):
            folder.commit(tmp_path, incomplete, manifest, attempt=None)
        assert folder.committed(tmp_path) == []


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("Trainer", "DTJ_CHECKPOINT_DIR", ""),
        ("State", "DTJ_CHECKPOINT_DIR", ""),
        ("State", "DTJ_CHECKPOINT_EVERY_STEPS", "3"),
        ("Trainer", "DTJ_CHECKPOINT_KEEP", "9"),
    ],
)
def test_a_variable_that_differs_on_one_rank_is_named_at_once(tmp_path: Path, kind: str, name: str, value: str) -> None:
    env = {"DTJ_CHECKPOINT_DIR": str(tmp_path / "c"), "DTJ_CHECKPOINT_EVERY_STEPS": "2", "DTJ_CHECKPOINT_KEEP": "2"}
    with ranks(2, ranks_checkpoint_contents.with_other_variables, tmp_path, kind, name, value, **env) as group:
        assert group.wait() == [93, 93], group.everything()
    for rank in (0, 1):
        assert f"rank 1 has {name}={value or 'not set'}, rank 0 has {name}={env[name]}" in group.output(rank)


@pytest.mark.torch
def test_running_statistics_validated_saved_and_exported_are_rank_0s(tmp_path: Path) -> None:
    finished(
        2,
        ranks_checkpoint_contents.statistics,
        tmp_path,
        str(tmp_path / "c"),
        str(tmp_path / "out.json"),
        LOCAL_WORLD_SIZE="2",
    )
    results = json.loads((tmp_path / "out.json").read_text())
    assert results.pop("owners") == {"model.1.running_mean": 0, "model.1.running_var": 0}
    assert set(results) == set(ranks_checkpoint_contents.WITH_STATISTICS)
    for name, case in results.items():
        assert case["saved"] == case["live"], name
        assert case["in the run"] == pytest.approx(case["exported"], rel=1e-6), name


@pytest.mark.torch
def test_one_optimizer_over_two_modules_is_saved_and_loaded(tmp_path: Path) -> None:
    finished(2, ranks_checkpoint_contents.encoder_and_head, tmp_path, str(tmp_path / "c"), str(tmp_path / "out.json"))
    results = json.loads((tmp_path / "out.json").read_text())
    assert results["step"] == 2
    assert results["loaded for 4"] == results["saved at 2"]
    assert sum(key.startswith("optimizer.state.") for key in results["saved at 2"]) == 4 * 3
    assert results["saved at 4"] != results["saved at 2"]


@pytest.mark.parametrize("some", [True, False])
def test_optimizer_with_a_parameter_of_no_module_is_rejected(some: bool) -> None:
    model, weight = nn.Linear(2, 1), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([*(model.parameters() if some else ()), weight], lr=0.1)
    with pytest.raises(
        ConfigError, match=r"optimizer 'optimizer' holds (1 parameters that are in none|no parameter) of the mod"
    ):
        CheckpointState({"model": model, "optimizer": optimizer})


class Colour(enum.Enum):
    RED = 1


class Part:
    """A state part."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


@pytest.mark.parametrize(
    "value",
    [
        np.float64(1.5), np.zeros(2), deque([1]), defaultdict(int), datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        Path("/data"), Colour.RED, np.random.get_state(), fractions.Fraction(1, 2), frozenset([1]), lambda: 0,
    ],
    ids=lambda v: type(v).__name__,
)  # fmt: skip
def test_part_that_could_be_saved_but_not_loaded_is_rejected_by_name(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"state part 'sampler' can't be loaded from a checkpoint"):
        CheckpointState({"good": Part({"a": 1}), "sampler": Part({"position": [value]})}).shared()


def test_state_of_a_part_is_copied_before_the_training_continues() -> None:
    part = Part({"seen": [1, 2], "weights": torch.ones(2), "schedule": {"lr": (0.1, None, "text")}})
    taken = CheckpointState({"part": part}).shared()["part"]
    part.state["seen"].append(3)
    part.state["weights"].zero_()
    assert taken["seen"] == [1, 2]
    assert taken["weights"].tolist() == [1.0, 1.0]
    assert taken["schedule"] == {"lr": (0.1, None, "text")}


@pytest.mark.torch
def test_part_that_cannot_be_loaded_ends_the_run_before_its_first_step(tmp_path: Path) -> None:
    with ranks(1, ranks_checkpoint_contents.unloadable, tmp_path, str(tmp_path / "c")) as group:
        assert group.wait() == [93], group.everything()
    assert "state part 'sampler' can't be loaded from a checkpoint (pathlib" in group.output()
    assert "a step" not in group.output()


@pytest.mark.torch
def test_nonfinite_weights_are_not_saved_and_end_the_run(tmp_path: Path) -> None:
    output = finished(
        2, ranks_checkpoint_contents.turned_nan, tmp_path, str(tmp_path / "c"), str(tmp_path / "out.json")
    )
    assert output.count("LossNotFinite") == 3, "once a run"
    results = json.loads((tmp_path / "out.json").read_text())
    for name, by_rank in results.items():
        for rank in by_rank:
            assert rank["committed"] == ["step-00000002"], name
            assert rank["ended"].startswith("NonFiniteLoss" if name == "ddp" else "CheckpointError"), rank
            assert rank["calls"] == (6 if name == "ddp" else 12), "the meeting at the save after the third NaN"


@pytest.mark.torch
def test_save_overdue_on_one_rank_ends_all_ranks_with_the_same_error(tmp_path: Path) -> None:
    finished(2, ranks_checkpoint_contents.overdue_on_one_rank, tmp_path, str(tmp_path / "c"), str(tmp_path / "ended"))
    assert [(tmp_path / f"ended-{rank}").read_text() for rank in (0, 1)] == ["CheckpointStalled"] * 2


@pytest.mark.torch
def test_exported_averages_load_strictly_into_a_model_with_buffers_or_tied_weights(tmp_path: Path) -> None:
    finished(2, ranks_checkpoint_contents.averaged, tmp_path, str(tmp_path / "c"), str(tmp_path / "out.json"))
    results = json.loads((tmp_path / "out.json").read_text())
    assert len(results) == 4
    for name, case in results.items():
        assert case["wrong"] == [], name
        assert case["other"], f"{name}: averages, and not the weights themselves"
        if "gpt" in name:
            assert "head.weight" in case["other"], "the second name of the tied weight"
