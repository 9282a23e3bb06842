"""The sbatch script of `dtj submit --slurm`, and its notes about fields that Slurm has no place for."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj.convert.fields import Draft, carry
from dtj.errors import InputError
from dtj.slurm.allocation import Allocation, fit
from dtj.slurm.fields import SPEC
from dtj_contract import names
from dtj_core import api
from dtj_core.api.launcher_flags import How
from dtj_core.api.v1alpha1 import Spec

Dtj = Callable[..., tuple[int, str, str]]
Print = Callable[..., tuple[int, str, str]]


def job(**spec: Any) -> Any:
    body = {
        "replicas": 2,
        "image": "trainer:1",
        "backend": "gloo",
        "entrypoint": {"module": "train", "args": ["--name", "it's $HOME"]},
        "checkpoint": {"volume": {"claimName": "shared"}},
    }
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "digits"}, "spec": body | spec}


@pytest.fixture
def script(dtj: Dtj, tmp_path: Path) -> Print:
    """Writes a job, and returns (exit code, script, notes)."""

    def script(*flags: str, **spec: Any) -> tuple[int, str, str]:
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(job(**spec)))
        return dtj("submit", "--slurm", tmp_path / "job.yaml", "--volumes-dir", "/runs", *flags)

    return script


def options(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]


def test_plain_job_is_a_script_that_bash_reads(script: Print, tmp_path: Path) -> None:
    code, text, _ = script()
    assert code == 0
    assert options(text) == [
        "--job-name=digits",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--signal=B:USR1@120",
        "--requeue",
        "--output=%x-%j.out",
        "--open-mode=append",
    ]
    (tmp_path / "job.sbatch").write_text(text)
    subprocess.run(["bash", "-n", tmp_path / "job.sbatch"], check=True, timeout=30)
    # The job is in the script as it was written.
    inside = yaml.safe_load(text.partition("<<'END_OF_JOB'\n")[2].partition("\nEND_OF_JOB\n")[0])
    assert inside["spec"]["entrypoint"] == job()["spec"]["entrypoint"]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"resources": {"limits": {"nvidia.com/gpu": 8}}, "backend": "nccl"}, "--gpus-per-node=8"),
        ({"resources": {"requests": {"cpu": "1500m"}}}, "--cpus-per-task=2"),
        ({"resources": {"limits": {"memory": "1.5Gi"}}}, "--mem=1536M"),
        ({"activeDeadlineSeconds": 90}, "--time=2"),
        ({"spares": 1}, "--nodes=3"),
        ({"spares": 1}, "--no-kill"),
        ({"elastic": {"minReplicas": 1}}, "--nodes=1-2"),
        ({"suspend": True}, "--hold"),
        ({"template": {"spec": {"terminationGracePeriodSeconds": 300}}}, "--signal=B:USR1@320"),
        ({"checkpoint": None}, "--no-requeue"),
    ],
)
def test_field_is_an_option(script: Print, spec: dict[str, Any], expected: str) -> None:
    code, text, notes = script(**spec)
    assert code == 0, notes
    assert expected in options(text)


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ({"queueName": "team"}, "not carried over: spec.queueName (team): "),
        ({"nodeSelector": {"disk": "ssd"}}, "not carried over: spec.nodeSelector"),
        ({"halfPlacedSeconds": 60}, "not needed: spec.halfPlacedSeconds (60): Slurm allocates all nodes at once"),
        ({"resources": {"limits": {"example.com/nic": 1}}}, "not carried over: resource example.com/nic (1): "),
        (
            {"template": {"spec": {"containers": [{"name": "trainer"}, {"name": "proxy", "image": "p"}]}}},
            "not carried over: spec.template.spec.containers[1] (proxy): only the container of the training",
        ),
    ],
)
def test_field_without_a_place_is_named(script: Print, spec: dict[str, Any], line: str) -> None:
    code, _, notes = script(**spec)
    assert code == 0
    assert line in notes


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (
            {"template": {"spec": {"volumes": [{"name": "v", "configMap": {"name": "c"}}]}}},
            "spec.template.spec.volumes[0].configMap",
        ),
        (
            {"template": {"spec": {"volumes": [{"name": "v", "csi": {"driver": "d"}}]}}},
            "spec.template.spec.volumes[0]",
        ),
        (
            {"checkpoint": {"volume": {"source": {"nfs": {"server": "filer", "path": "/runs"}}}}},
            "spec.checkpoint.volume.source",
        ),
    ],
)
def test_volume_that_means_nothing_is_refused(script: Print, spec: dict[str, Any], field: str) -> None:
    code, text, notes = script(**spec)
    assert (code, text) == (2, "")
    assert f"job.yaml: {field}" in notes
    assert "write hostPath" in notes


def test_every_field_of_the_api_has_a_place(dtj: Dtj) -> None:
    for field in Spec.model_fields.values():
        draft = Draft()
        carry(SPEC, {field.alias: {"x": 1}}, draft)
        carry(SPEC, {field.alias: [{"x": 1}]}, draft)
        carry(SPEC, {field.alias: 1}, draft)
        unknown = [note for note in draft.notes if note.how is How.UNKNOWN]
        assert len(unknown) < 3 or field.alias == "template", field.alias


def test_flag_of_slurm_without_slurm_is_refused(dtj: Dtj, job_file: Path) -> None:
    assert dtj("submit", job_file, "--python", "/usr/bin/python3")[2].startswith("dtj: --python: give --slurm too")


def step(**environ: str) -> dict[str, str]:
    given = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NODEID": "1", "SLURMD_NODENAME": "b"}
    ours = {"DTJ_SLURM_NODES": "a b ", "DTJ_SLURM_KEY": "k" * 64, "DTJ_SLURM_VOLUMES": "/runs"}
    return {**given, **ours, **environ}


def test_node_id_is_the_ordinal_and_the_nodes_are_the_peers() -> None:
    found = Allocation.read(step(SLURM_RESTART_COUNT="2"))
    assert (found.ordinal, found.node, found.run) == (1, "b", "slurm7-2-0")
    assert found.peers == "a:29407,b:29407"


@pytest.mark.parametrize(("tracker", "expected"), [("proctrack/linuxproc", True), ("proctrack/cgroup", False)])
def test_signals_are_passed_on_where_slurm_sends_them_to_tasks_alone(tracker: str, expected: bool) -> None:
    assert Allocation.read(step(DTJ_SLURM_TRACKER=tracker)).signals_reach_agents is expected


@pytest.mark.parametrize("environ", [{"SLURM_JOB_ID": ""}, {"SLURMD_NODENAME": "c"}, {"SLURM_NODEID": "9"}])
def test_task_outside_of_the_script_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(InputError, match=r"is not set: start this by the script|is not its place in a b"):
        Allocation.read(step(**environ))


@pytest.mark.parametrize(
    ("spec", "nodes", "expected"),
    [({}, 2, (2, 0)), ({}, 3, (2, 1)), ({"elastic": {"minReplicas": 1}}, 1, (1, 0))],
    ids=["as asked", "a node more", "elastic"],
)
def test_each_node_of_the_allocation_has_a_pod(spec: dict[str, Any], nodes: int, expected: tuple[int, int]) -> None:
    written = job(**spec)
    found = fit(written, api.validate(written), nodes)["spec"]
    assert (found["replicas"], found["spares"]) == expected


def test_too_small_an_allocation_is_refused() -> None:
    with pytest.raises(InputError, match=r"has 1 nodes, and the job needs 2: sbatch --nodes=2"):
        fit(job(), api.validate(job()), 1)
