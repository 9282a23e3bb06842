"""DeepSpeed's stages of ZeRO on two pods of two ranks: undisturbed, killed halfway, and at another number of ranks.

`make test-long` runs this file, in the environment that hack/frameworks.sh builds.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.frameworks.jobs import LIMIT, ROOT, dtj_run, losses, scaled_run, train

SCRIPT = Path(__file__).with_name("deepspeed_script.py")
EXAMPLE = ROOT / "examples/deepspeed/job.yaml"
FINAL = re.compile(r"final step=(\d+) resumed=(\d+) world=(\d+) loss=([\d.]+)")
STEPS, EVERY, KILL_AT = 24, 4, 15
KINDS = ("zero1", "zero2", "zero3", "zero2-offload", "zero2-cpuadam", "zero3-offload")
pytestmark = [
    pytest.mark.timeout(4 * LIMIT),
    pytest.mark.skipif(
        importlib.util.find_spec("deepspeed") is None,
        reason="deepspeed is not installed: hack/frameworks.sh installs it",
    ),
]
Wholes = dict[str, tuple[Path, dict[str, Any]]]
"""The folders and results of undisturbed runs."""


@pytest.fixture(scope="module")
def wholes() -> Wholes:
    return {}


def whole(kind: str, folder: Path, wholes: Wholes) -> tuple[Path, dict[str, Any]]:
    if kind not in wholes:
        found, status = train(folder / "whole", SCRIPT, kind, str(folder / "whole"))
        assert (status["attempt"], status["restarts"]["total"]) == (1, 0)
        wholes[kind] = folder / "whole", found
    return wholes[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_killed_training_ends_with_the_undisturbed_result(kind: str, tmp_path: Path, wholes: Wholes) -> None:
    _, reference = whole(kind, tmp_path, wholes)
    assert (reference["world"], reference["step"], reference["resumed"]) == (4, STEPS, 0)
    folder = tmp_path / "killed"
    found, status = train(folder, SCRIPT, kind, str(folder), kill="3")
    assert found["sum"] == pytest.approx(reference["sum"], abs=1e-9)
    assert found["loss"] == pytest.approx(reference["loss"], abs=1e-9)
    assert (found["step"], found["resumed"]) == (STEPS, KILL_AT // EVERY * EVERY)
    assert (status["attempt"], status["restarts"]["inPlace"]) == (2, 1)
    assert any(failure["rank"] == 3 and failure["signal"] == "SIGKILL" for failure in status["failures"])


def test_stages_of_zero_end_with_the_same_weights(tmp_path: Path, wholes: Wholes) -> None:
    found = {kind: whole(kind, tmp_path / kind, wholes)[1]["sum"] for kind in ("zero1", "zero2", "zero3")}
    assert found["zero2"] == pytest.approx(found["zero1"], abs=1e-5)
    assert found["zero3"] == pytest.approx(found["zero1"], abs=1e-5)


@pytest.mark.parametrize("kind", ["zero1", "zero2", "zero3", "zero3-offload"])
def test_training_continues_with_fewer_ranks_and_then_with_more(kind: str, tmp_path: Path, wholes: Wholes) -> None:
    """The global batch stays the same, so each step's loss does, but for the order in which floats are added."""
    undisturbed, reference = whole(kind, tmp_path, wholes)
    folder = tmp_path / "resized"
    found = [
        train(folder, SCRIPT, kind, str(folder), "universal", steps=steps, replicas=pods)[0]
        for steps, pods in ((8, 2), (16, 1), (STEPS, 2))
    ]
    assert [(each["world"], each["resumed"], each["step"]) for each in found] == [(4, 0, 8), (2, 8, 16), (4, 16, STEPS)]
    assert found[-1]["sum"] == pytest.approx(reference["sum"], abs=1e-4)
    assert losses(folder) == pytest.approx(losses(undisturbed), rel=1e-4)
    saved = sorted(path.name for path in folder.glob("volumes/**/step-*"))
    assert saved == ["step-00000016", "step-00000020", "step-00000024"]
    assert not list(folder.glob("volumes/**/.universal-*"))


def test_scaled_example_loses_no_step_and_ends_with_the_undisturbed_loss(tmp_path: Path) -> None:
    steps = 1500
    logs: list[str] = []
    for folder in (tmp_path / "whole", tmp_path / "scaled"):
        job = yaml.safe_load(EXAMPLE.read_text())
        job["spec"]["entrypoint"]["args"] = [str(steps)]
        folder.mkdir()
        (folder / "job.yaml").write_text(yaml.safe_dump(job))
    dtj_run(tmp_path / "whole", tmp_path / "whole/job.yaml", "--run-dir", str(tmp_path / "whole/run"), logs=logs)
    scaled_run(tmp_path / "scaled", tmp_path / "scaled/job.yaml", logs=logs)
    (whole, *_), (scaled, *_) = (FINAL.findall(each) for each in logs)
    print(f"undisturbed {whole}, scaled {scaled}")
    assert whole[:3] == (str(steps), "0", "4")
    assert (scaled[0], scaled[2]) == (str(steps), "4")
    assert float(scaled[3]) == pytest.approx(float(whole[3]), rel=0.01)
