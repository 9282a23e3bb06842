"""`dtj run` accepts what `kubectl apply` accepts; test_api.py checks the API server's verdict."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from dtj_core.api import InvalidJob, read, validate, violations
from tests.unit.api.specs import BAD, BAD_NAMES, GOOD, MINIMAL, job, template


@pytest.mark.parametrize("case", GOOD)
def test_valid_job_is_accepted(case: str) -> None:
    assert violations(job(GOOD[case])) == ()


@pytest.mark.parametrize("case", BAD)
def test_invalid_job_is_rejected_with_the_field(case: str) -> None:
    spec, field = BAD[case]
    assert field in [violation.path for violation in violations(job(spec))]


@pytest.mark.parametrize("case", BAD_NAMES)
def test_name_invalid_for_pods_or_services_is_rejected(case: str) -> None:
    assert "metadata.name" in str(violations(job(MINIMAL, BAD_NAMES[case]))[0])


def test_longest_name_is_accepted() -> None:
    assert violations(job(MINIMAL, "n" * 52)) == ()


def test_every_violation_is_reported_at_once() -> None:
    found = violations(job({"image": None, "entrypoint": None, "checkpoint": {"volume": {}}}))
    assert [violation.path for violation in found] == ["spec.image", "spec.entrypoint", "spec.checkpoint.volume"]


def test_wrong_types_of_the_spec_and_of_its_template_are_reported_together() -> None:
    found = violations(job({"image": 7, "template": {"spec": {"volumes": {"0": 1}}}}))
    assert [violation.path for violation in found] == ["spec.image", "spec.template.spec.volumes"]


def test_message_names_what_to_write_instead() -> None:
    with pytest.raises(
        InvalidJob, match=r"spec\.image: no image: set spec\.image, or the image of the trainer container"
    ):
        validate(job({"image": None}))


def test_stored_object_may_have_unknown_fields() -> None:
    stored = job({"newIn2030": {"x": 1}, "restart": {"maxRestarts": 2, "policy": "new"}})
    assert read(stored).spec.restart.max_restarts == 2
    assert {violation.path for violation in violations(stored)} == {"spec.newIn2030", "spec.restart.policy"}


def test_stored_object_that_breaks_a_rule_is_rejected() -> None:
    with pytest.raises(InvalidJob, match="begin with 'dtj-' are reserved by the operator"):
        read(job({"template": template({"volumes": [{"name": "dtj-state"}]})}))


def test_template_and_raw_volume_source_are_kept_as_written() -> None:
    written = template({"future": {"nested": [None, {"a": 1}]}}, image="x")
    spec = read(
        job({"image": None, "template": written, "checkpoint": {"volume": {"source": {"nfs": {"new": [1]}}}}})
    ).spec
    assert spec.template == written
    assert spec.checkpoint is not None
    assert spec.checkpoint.volume.source is not None
    assert spec.checkpoint.volume.source.model_dump(by_alias=True, exclude_none=True) == {"nfs": {"new": [1]}}


@pytest.mark.parametrize(
    ("gpus", "given", "processes", "backend"),
    [
        ({}, {}, 1, "gloo"),
        ({"nvidia.com/gpu": 8}, {}, 8, "nccl"),
        ({"nvidia.com/gpu": "4"}, {"processesPerPod": 2}, 2, "nccl"),
    ],
)
def test_gpus_set_one_process_each_and_nccl(
    gpus: dict[str, object], given: dict[str, object], processes: int, backend: str
) -> None:
    spec = read(job({"template": template(resources={"limits": gpus}), **given})).spec
    assert (spec.processes, spec.resolved_backend) == (processes, backend)


def test_job_of_the_tutorial_is_valid_and_has_a_rank_for_each_gpu() -> None:
    page = (Path(__file__).parents[3] / "docs/tutorial.md").read_text()
    (written,) = re.findall(r"^```yaml\n(apiVersion: training.*?)^```$", page, re.MULTILINE | re.DOTALL)
    spec = validate(yaml.safe_load(written)).spec
    assert (spec.replicas, spec.processes, spec.resolved_backend) == (4, 8, "nccl")
