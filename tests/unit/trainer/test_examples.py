"""The built-in examples and the plain torchrun script learn, and resume."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
import torch

from dtj_trainer.data import text
from tests.unit.trainer.ranks import finished, history, ranks
from tests.unit.trainer.ranks_shared import PLAIN, plain

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(("model", "epochs"), [("mlp", "30"), ("cnn", "8")])
def test_two_ranks_learn_the_digits_to_95_percent(tmp_path: Path, model: str, epochs: str) -> None:
    command = ["dtj_trainer.examples.digits", "--model", model, "--epochs", epochs]
    output = finished(2, [*command, "--checkpoint-dir", str(tmp_path / "c")], tmp_path)
    final = re.search(r"^final step=(\d+) loss=\S+ accuracy=(\S+)$", output, re.M)
    assert final, output
    assert float(final[2]) >= 0.95
    last = history(tmp_path / "c")[-1]
    assert last.keys() >= {
        "loss",
        "lr",
        "validation_accuracy",
        "samples_per_second",
        "imbalance",
        "memory_bytes",
        "overlap",
    }
    parts = {f"{p}_seconds" for p in ("step", "data", "compute", "checkpoint", "communication", "exposed")}
    assert last.keys() >= parts | {"communication_share", "slowest_rank"}
    assert {k: len(v) for k, v in last["per_rank"].items()} == dict.fromkeys({*parts, "memory_bytes"}, 2)
    assert last["data_seconds"] + last["compute_seconds"] + last["exposed_seconds"] <= last["step_seconds"]


def test_small_gpt_learns_from_the_standard_library(tmp_path: Path) -> None:
    command = [
        "dtj_trainer.examples.gpt",
        "--steps",
        "30",
        "--layers",
        "2",
        "--width",
        "64",
        "--block",
        "64",
        "--lr",
        "3e-3",
    ]
    output = finished(2, [*command, "--characters", "300000", "--data", str(tmp_path)], tmp_path)
    losses = [float(x) for x in re.findall(r"^step=\d+ .*?loss=(\S+)", output, re.M)]
    assert losses[-1] < 3.3 < losses[0], "from ln 97 = 4.6 towards the frequencies of single characters"


def test_plain_torchrun_script_resumes_from_its_own_checkpoint(tmp_path: Path) -> None:
    saved = tmp_path / "c" / "checkpoint.pt"
    with ranks(2, plain, tmp_path, str(tmp_path / "c"), STEP_SECONDS="0.01") as group:
        group.wait_until(saved.exists)
        group.signal(signal.SIGKILL)
        group.wait()
    assert torch.load(saved)["step"] < 200
    assert "final step=200" in finished(2, plain, tmp_path, str(tmp_path / "c"))
    assert "final step=200" in finished(2, plain, tmp_path, str(tmp_path / "c")), "and ends when nothing is left to do"


def test_tokens_decode_to_their_text_except_for_unknown_characters() -> None:
    sample = "def f(x):\n\treturn x + 1  # ~é"
    assert text.decode(text.encode(sample).tolist()) == sample.replace("é", "?")
    assert "dtj_agent" not in PLAIN.read_text()
    assert "dtj_trainer" not in PLAIN.read_text()
