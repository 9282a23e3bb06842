"""The scripts of examples/ as ranks: the loop with State learns what the bare loop learns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.trainer.ranks import finished, history, ranks
from tests.unit.trainer.ranks_example_scripts import script

pytestmark = pytest.mark.torch


def test_own_loop_with_state_learns_what_the_bare_loop_learns(tmp_path: Path) -> None:
    bare = finished(2, script, tmp_path, "own_loop/before.py", "60")
    ours = finished(2, script, tmp_path, "own_loop/train.py", "60", DTJ_CHECKPOINT_DIR=str(tmp_path / "c"))
    (final,) = re.findall(r"^final accuracy=.*", bare, re.M)
    assert final in ours.splitlines()
    assert (tmp_path / "c" / "step-00000060" / "manifest.json").exists()
    assert [record["step"] for record in history(tmp_path / "c")] == [10, 20, 30, 40, 50, 60]


def test_trainer_script_learns_and_ends(tmp_path: Path) -> None:
    with ranks(2, script, tmp_path, "trainer/train.py", "4", DTJ_CHECKPOINT_DIR=str(tmp_path / "c")) as group:
        assert group.wait() == [0, 0], group.everything()
        (accuracy,) = re.findall(r"^final accuracy=(\S+)$", group.output(), re.M)
    assert float(accuracy) > 0.8
    assert history(tmp_path / "c")[-1]["validation_accuracy"] == pytest.approx(float(accuracy), abs=1e-3)
