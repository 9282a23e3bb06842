"""A converted job trains: a launcher that stays in its shell text forms one group over all pods, in a local run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dtj.main import main
from tests.unit.client.converted import PYTORCHJOB, changed

SPECS = "spec.pytorchReplicaSpecs"
RANK = """
import os, pathlib
from torch import distributed
distributed.init_process_group("gloo")
gathered = [None] * distributed.get_world_size()
distributed.all_gather_object(gathered, os.environ["GROUP_RANK"] + "." + os.environ["LOCAL_RANK"])
pathlib.Path("rank-" + os.environ["RANK"]).write_text(" ".join(gathered))
"""


@pytest.mark.torch
def test_launcher_that_stays_forms_one_group_over_all_pods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rank.py").write_text(RANK)
    text = f"echo begins; {sys.executable} -m torch.distributed.run rank.py | cat"
    container = {"name": "pytorch", "image": "x", "command": ["bash", "-c", text]}
    changes = {
        f"{SPECS}.Master": None,
        f"{SPECS}.Worker.replicas": 2,
        f"{SPECS}.Worker.template.spec.containers": [container],
        "spec.nprocPerNode": "2",
        "metadata.namespace": None,
    }
    Path("kubeflow.yaml").write_text(changed(PYTORCHJOB, changes))
    assert main(["convert", "kubeflow.yaml", "-o", "job.yaml"]) == 0
    assert "stays: the agent starts one launcher for each pod" in capsys.readouterr().err
    assert main(["run", "job.yaml", "--plain"]) == 0
    assert [Path(f"rank-{rank}").read_text() for rank in range(4)] == ["0.0 0.1 1.0 1.1"] * 4
