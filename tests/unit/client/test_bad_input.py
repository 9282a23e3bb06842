"""`dtj run` rejects whatever the API server would reject, before it starts anything.

The exit code is 2, and the message names the field.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dtj.main import main
from tests.unit.client.support import job_yaml

TOO_LONG = "n" * 60
JOBS = {
    "unknown field": (job_yaml(more="  replica: 3"), "spec.replica: unknown field; did you mean replicas?"),
    "a number as an argument": (
        job_yaml().replace('["60"]', "[--epochs, 30]"),
        'spec.entrypoint.args[1]: must be a string, not 30; quote it: "30"',
    ),
    "another backend": (job_yaml().replace("gloo", "mpi"), "'gloo', not 'mpi'"),
    "another case": (job_yaml(more="  imagepullsecrets: []"), "unknown field; did you mean imagePullSecrets?"),
    "unknown field inside": (
        job_yaml(more="  restart: {maxRestart: 1}"),
        "spec.restart.maxRestart: unknown field; did you mean maxRestarts?",
    ),
    "unknown field in a list": (
        job_yaml(more="  restart: {rules: [{action: Fail, exitCode: [1]}]}"),
        "spec.restart.rules[0].exitCode: unknown field; did you mean exitCodes?",
    ),
    "a field like no other": (job_yaml(more="  zzz: 1"), "spec.zzz: unknown field\n"),
    "an enum value with a typo": (job_yaml(more="  cleanPodPolicy: al"), "not 'al'; did you mean All?"),
    "an enum value in a list": (
        job_yaml(more="  restart: {rules: [{action: Fail, reasons: [OOMKill]}]}"),
        "not 'OOMKill'; did you mean OOMKilled?",
    ),
    "an enum value like no other": (job_yaml(more="  cleanPodPolicy: Running"), "not 'Running'\n"),
    "host network in the spec": (
        job_yaml(more="  hostNetwork: true"),
        "spec.hostNetwork: unknown field; write spec.network: {hostNetwork: …}",
    ),
    "volumes in the spec": (
        job_yaml(more="  volumes: []"),
        "spec.volumes: unknown field; write it in spec.template.spec.volumes",
    ),
    "a limit that is an object": (
        job_yaml(more="  resources: {limits: {cpu: {}}}"),
        "spec.resources.limits.cpu: must be a quantity, not an object",
    ),
    "a shorthand and the template's field": (
        job_yaml(more="  nodeSelector: {a: b}\n  template: {spec: {nodeSelector: {c: d}}}"),
        "set spec.nodeSelector or template.spec.nodeSelector, not both",
    ),
    "a claim without its volume": (
        job_yaml().replace("volume: {claimName: shared}", "claimName: shared"),
        "spec.checkpoint.claimName: unknown field; write volume: {claimName: …}",
    ),
    "an emptyDir": (
        job_yaml().replace("claimName: shared", "emptyDir: {}"),
        "spec.checkpoint.volume.emptyDir: unknown field; an emptyDir is lost with its pod",
    ),
    "out of range": (job_yaml(more="  activeDeadlineSeconds: 0"), "spec.activeDeadlineSeconds: "),
    "a rule": (
        job_yaml().replace("{name: count}", "{name: " + TOO_LONG + "}"),
        "metadata.name must have at most 52 characters",
    ),
    "suspended": (job_yaml(more="  suspend: true"), "spec.suspend: the job would never start"),
    "no YAML": ("a: [", "not valid YAML: line 1, column 5: "),
    "a tab": ("a:\n\tb: 1", "not valid YAML: line 2, column 1: found character '\\t'"),
    "an alias that holds itself": ("a: &a [*a]", "not valid YAML: nested too deeply, or an alias that holds itself"),
    "a tag that the value does not have": ("a: !!float b", "not valid YAML: a value is none of its type"),
    "a number without digits": ("a: !!int ''", "not valid YAML: a value is none of its type"),
    "a number that is too long": ("a: " + "9" * 5000, "not valid YAML: a value is none of its type"),
    "lists in lists": ("[" * 3000, "not valid YAML: nested too deeply"),
    "not a job": (
        "kind: Pod\napiVersion: v1\nmetadata: {name: x}",
        "not a job but v1, Pod; write apiVersion: training.dtj.dev/v1alpha1",
    ),
    "a list": ("[1]", "not a job but list"),
    "no name": (job_yaml().replace("{name: count}", "{}"), "metadata.name: required"),
    "a namespace that is a path": (
        job_yaml().replace("{name: count}", "{name: count, namespace: ../..}"),
        "metadata.namespace '../..': write a name of a-z, 0-9",
    ),
    "a claim that is a path": (
        job_yaml().replace("claimName: shared", "claimName: /home"),
        "spec.checkpoint.volume.claimName: write a name of a-z, 0-9",
    ),
    "empty": ("", "empty; it must hold a DistributedTrainingJob"),
    "two jobs": (job_yaml() + "---\n" + job_yaml(), "holds 2 jobs; dtj run takes one"),
}
FAULTS = {
    "no step": ("worker:1", "write worker:RANK@step=STEP"),
    "no such rank": ("worker:3@step=1", "the job has workers 0 to 2"),
    "no such pod": ("pod:7@step=1", "the job has pods 0 to 2"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("text", "message"), JOBS.values(), ids=JOBS.keys())
def test_bad_job_exits_with_2_and_the_field(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    Path("job.yaml").write_text(text)
    assert main(["run", "job.yaml"]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("dtj: job.yaml: ")
    assert message in err
    assert out == ""
    assert [path.name for path in folder.iterdir()] == ["job.yaml"], "no file was created"


@pytest.mark.parametrize(("fault", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_impossible_fault_exits_with_2(capsys: pytest.CaptureFixture[str], fault: str, message: str) -> None:
    Path("job.yaml").write_text(job_yaml())
    assert main(["run", "job.yaml", "--kill", fault]) == 2
    assert f"dtj: --kill {fault}: {message}" in capsys.readouterr().err


def test_missing_file_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "none.yaml"]) == 2
    assert capsys.readouterr().err == "dtj: none.yaml: No such file or directory\n"


def test_all_violations_are_reported_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    Path("job.yaml").write_text(job_yaml(more="  replica: 3\n  ttl: 4"))
    assert main(["run", "job.yaml"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("dtj: job.yaml: spec.") for line in lines)


def test_file_that_is_not_utf_8_is_named_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("job.yaml").write_bytes(job_yaml().encode() + b"# caf\xe9\n")
    assert main(["run", "job.yaml"]) == 2
    line = 1 + job_yaml().count("\n")
    assert capsys.readouterr().err == f"dtj: job.yaml: not valid YAML: line {line} is not UTF-8\n"
