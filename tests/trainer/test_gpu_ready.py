"""What a GPU would meet first, by its logic on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.trainer.ranks import finished
from tests.trainer.work_gpu import clipped_norms


@pytest.mark.torch
def test_clip_under_fp16_with_a_partial_optimizer_finds_the_norm_of_fp32(tmp_path: Path) -> None:
    finished(2, clipped_norms, tmp_path, str(tmp_path / "out.json"))
    told = json.loads((tmp_path / "out.json").read_text())
    assert len(told) == 4
    for strategy, (whole, half) in told.items():
        assert half == pytest.approx(whole, rel=0.02), strategy
