"""The example jobs are valid, and name modules and flags that are there."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import yaml

from dtj_operator.api.read import validate

EXAMPLES = Path(__file__).parents[2] / "examples"
JOBS = sorted(p.name for p in EXAMPLES.glob("*.yaml") if p.name != "train.yaml")


@pytest.mark.parametrize("name", JOBS)
def test_an_example_job_is_valid_and_its_command_is_understood(name: str) -> None:
    job = yaml.safe_load((EXAMPLES / name).read_text())
    validate(job)
    entrypoint = job["spec"]["entrypoint"]
    if "module" in entrypoint:
        module = importlib.import_module(entrypoint["module"])
        module.parser().parse_args([str(a) for a in entrypoint["args"]])
