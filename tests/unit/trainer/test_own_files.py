"""Parts of a checkpoint that write files of their own, as DeepSpeed's engine does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dtj_trainer.checkpoint import folder
from tests.unit.trainer.ranks import finished, ranks
from tests.unit.trainer.ranks_own_files import FOLDER, count

pytestmark = pytest.mark.torch


def result(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "result.json").read_text())
    return found


def test_own_files_are_in_the_manifest_kept_and_loaded_by_other_ranks(tmp_path: Path) -> None:
    finished(2, count, tmp_path, str(tmp_path / "saved"), 3)
    assert result(tmp_path / "saved") == {"loaded": [], "number": 3}
    newest, before = folder.committed(tmp_path / "saved")
    assert (newest.name, before.name) == ("step-00000003", "step-00000002")
    checkpoint = folder.read(newest)
    assert {f"{FOLDER}/0.json", f"{FOLDER}/1.json", ".metadata", "shared.pt"} <= set(checkpoint.manifest.files)
    folder.verify(checkpoint, checkpoint.manifest.files)
    finished(3, count, tmp_path, str(tmp_path / "saved"), 5)
    assert result(tmp_path / "saved") == {"loaded": [3, 3], "number": 3}


def test_torn_own_file_makes_the_checkpoint_before_it_the_newest(tmp_path: Path) -> None:
    finished(2, count, tmp_path, str(tmp_path / "saved"), 2)
    (tmp_path / "saved/step-00000002" / FOLDER / "1.json").write_text("9.0")
    finished(2, count, tmp_path, str(tmp_path / "saved"), 4)
    assert result(tmp_path / "saved") == {"loaded": [1, 1], "number": 3}


def test_number_that_one_rank_finds_wrong_is_not_saved(tmp_path: Path) -> None:
    with ranks(2, count, tmp_path, str(tmp_path / "saved"), 6, 9.0) as group:
        assert 0 not in group.wait(), group.everything()
    assert "number (of rank 1) is not finite: not saved" in group.everything()
    assert [path.name for path in folder.committed(tmp_path / "saved")] == ["step-00000003", "step-00000002"]
