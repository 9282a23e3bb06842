"""A job file in JSON or YAML gives the same texts that kubectl would send."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dtj import jobfile, runtimefile
from tests.unit.api.texts import ANY_TEXT, as_stored

JOB: dict[str, Any] = {
    "apiVersion": "training.dtj.dev/v1alpha1",
    "kind": "DistributedTrainingJob",
    "metadata": {"name": "j"},
    "spec": {"image": "i", "entrypoint": {"script": "/train.py"}},
}


@pytest.mark.parametrize("text", ANY_TEXT.values(), ids=ANY_TEXT)
def test_json_text_is_read_as_the_api_server_reads_it(text: str, tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text(json.dumps(JOB | {"spec": {"image": "i", "entrypoint": {"script": "/train.py", "args": [text]}}}))
    job = runtimefile.load_one(str(file))
    assert job["spec"]["entrypoint"]["args"] == [as_stored(text)]
    jobfile.check(job, str(file))


def test_unquoted_yaml_date_is_a_string(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(JOB).replace('"metadata": {', '"metadata": {"annotations": {"since": 2026-11-22}, '))
    assert runtimefile.load_one(str(file))["metadata"]["annotations"] == {"since": "2026-11-22"}
