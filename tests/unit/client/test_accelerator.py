"""`dtj run` of a job whose accelerator leaves ranks and backend undecided ends at once.

On a cluster the job would wait for an answer.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dtj.errors import InputError
from dtj.local.command import command
from dtj.main import parser


def test_local_run_with_an_undecided_accelerator_is_rejected(tmp_path: Path) -> None:
    container = {"name": "trainer", "image": "i", "resources": {"limits": {"habana.ai/gaudi": 8}}}
    spec = {"entrypoint": {"module": "train"}, "template": {"spec": {"containers": [container]}}}
    job = {
        "apiVersion": "training.dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": "j"},
        "spec": spec,
    }
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(job))
    with pytest.raises(InputError, match=r"habana\.ai/gaudi, for which there is no default: set spec\.backend"):
        command(parser().parse_args(["run", str(file)]))
