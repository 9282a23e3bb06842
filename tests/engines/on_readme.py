"""The blocks of the README, one for each engine, as a new user runs them: with the real packages, on two pods.

`make test-long` runs this file, in the environments that hack/engines.sh and hack/frameworks.sh build.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.api.test_docs_jobs import BLOCK, ROOT

LIMIT = 600
PACKAGES = ("deepspeed", "horovod", "jax", "ray", "tensorflow")
STEPS = 200


@pytest.mark.timeout(2 * LIMIT)
@pytest.mark.parametrize("engine", PACKAGES)
def test_block_of_the_readme_runs_as_it_stands(engine: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(engine) is None:
        pytest.skip(f"{engine} is not installed")
    (text,) = [text for _, text in BLOCK.findall((ROOT / "README.md").read_text()) if f"engine: {engine}\n" in text]
    (tmp_path / "job.yaml").write_text(text)
    (tmp_path / "examples").symlink_to(ROOT / "examples")  # the checkpoints are in a folder beside it
    done = subprocess.run(
        [sys.executable, "-m", "dtj.main", "run", "--plain", "-o", "json", "--logs", "--run-dir", str(tmp_path / "run"),
         str(tmp_path / "job.yaml")],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}, capture_output=True, text=True, timeout=LIMIT, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    status = json.loads(done.stdout)["status"]
    assert (status["phase"], status["restarts"]["total"]) == ("Complete", 0)
    assert status["progress"]["step"] == STEPS
