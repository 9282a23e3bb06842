"""The example jobs are valid, and name modules and flags that are there."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj_agent import names
from dtj_operator.api.read import validate

EXAMPLES = Path(__file__).parents[2] / "examples"
JOBS = {
    f"{path.name}: {job['metadata']['name']}": job
    for path in sorted(EXAMPLES.glob("*.yaml"))
    for job in yaml.safe_load_all(path.read_text())
    if job.get("kind") == names.KIND
}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS.keys())
def test_an_example_job_is_valid_and_its_command_is_understood(job: dict[str, Any]) -> None:
    validate(job)
    entrypoint = job["spec"].get("entrypoint", {})
    if "module" in entrypoint:
        module = importlib.import_module(entrypoint["module"])
        module.parser().parse_args([str(a) for a in entrypoint.get("args", [])])
