"""The verb `dtj convert`: YAML alone on standard output, notes on standard error, and errors that name a remedy."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj.convert import pages
from dtj.convert.documents import Options, convert
from dtj.errors import InputError
from dtj.main import main
from dtj_core import api
from tests.unit.client.converted import IMAGE, PYTORCHJOB, RUNTIME, TRAINJOB, changed
from tests.unit.client.support import job_yaml

BAD = {
    "an empty file": ("", "empty: write a PyTorchJob (kubeflow.org/v1), a TrainJob"),
    "comments alone": ("# nothing\n", "empty: write a PyTorchJob"),
    "no YAML": ("kind: [", "not valid YAML: line 1"),
    "prose": ("train the model", "not a job but str: write a PyTorchJob"),
    "a list": ("- kind: x", "not a job but list"),
    "another kind": ("kind: Pod\napiVersion: v1", "no training job but v1, Pod: write a PyTorchJob"),
    "MPI": ("kind: MPIJob\napiVersion: kubeflow.org/v2beta1", "MPIJob starts MPI, not torch.distributed"),
    "our kind": (job_yaml(), "already a DistributedTrainingJob: apply it as it is"),
    "a runtime alone": (RUNTIME, "a runtime without a TrainJob"),
    "a TrainJob alone": (TRAINJOB, "kubectl get clustertrainingruntime torch-distributed -o yaml > runtime.yaml"),
    "a Helm template": (
        "kind: PyTorchJob\nmetadata: {name: {{ .Values.name }}}",
        "line 2: {{ .Values.name }} is a template",
    ),
    "envsubst": (PYTORCHJOB.replace("replicas: 3", "replicas: $N"), "$N is filled in by envsubst or a script"),
    "envsubst in flow style": (
        PYTORCHJOB.replace("{name: mnist,", "{name: '${NAME}',"),
        "metadata.name: $NAME is filled",
    ),
    "a quoted Helm template": (PYTORCHJOB.replace("replicas: 3", "replicas: '{{ .N }}'"), "{{ .N }} is a template"),
    "another version": (
        PYTORCHJOB.replace("kubeflow.org/v1", "kubeflow.org/v1beta2"),
        "kubeflow.org/v1beta2 is not converted",
    ),
    "a field of another type": (
        PYTORCHJOB.replace("{name: mnist, namespace: team}", "mnist"),
        "a field has another type",
    ),
    "annotations of another type": (changed(PYTORCHJOB, {"metadata.annotations": "ab"}), "a field has another type"),
    "a script without a launcher": ("#!/bin/sh\npython3 train.py\n", "a script without #SBATCH lines"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input_exits_with_2_and_a_remedy(text: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("job.yaml").write_text(text)
    assert main(["convert", "job.yaml"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dtj: job.yaml: ")
    assert message in err
    assert len(err.splitlines()) == 1


def test_missing_file_and_bytes_that_are_no_text_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "none.yaml"]) == 2
    Path("job.yaml").write_bytes(b"\xff\xfe")
    assert main(["convert", "job.yaml"]) == 2
    assert main(["convert", "--runtime", "none.yaml", "job.yaml"]) == 2
    err = capsys.readouterr().err.splitlines()
    assert err[0] == "dtj: none.yaml: No such file or directory: give the file of a job, or - for standard input"
    assert err[1] == "dtj: job.yaml: not text in UTF-8: give the file of a job"
    assert err[2].startswith("dtj: none.yaml: No such file")


def test_output_is_one_valid_job_and_notes_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    Path("job.yaml").write_text(PYTORCHJOB)
    assert main(["convert", "job.yaml"]) == 0
    out, err = capsys.readouterr()
    assert "#" not in out
    assert api.violations(yaml.safe_load(out)) == ()
    assert err.splitlines()[0].startswith("job.yaml: in another form: spec.pytorchReplicaSpecs.")


@pytest.mark.parametrize("text", ["1e-4", "1.5e5", "0o17", "y", "N", "1_000", "-.5", "+1E3", "12", "0x1F"])
def test_text_that_kubectl_would_read_as_a_number_or_boolean_is_quoted(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", "--image", IMAGE, "--", "torchrun", "train.py", "--lr", text]) == 0
    assert f"- '{text}'\n" in capsys.readouterr().out


def test_byte_order_mark_is_no_part_of_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("job.sbatch").write_text("\ufeff#SBATCH -N 2\nsrun python3 train.py\n", encoding="utf-8")
    assert main(["convert", "--image", IMAGE, "job.sbatch"]) == 0
    assert "replicas: 2\n" in capsys.readouterr().out


def test_comments_flag_writes_the_notes_above_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    Path("job.yaml").write_text(PYTORCHJOB)
    main(["convert", "--comments", "-f", "job.yaml"])
    out = capsys.readouterr().out
    assert out.startswith("# Converted by dtj convert from job.yaml.\n# in another form: spec.pytorchReplicaSpecs.")
    assert api.violations(yaml.safe_load(out)) == ()


def test_out_flag_writes_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("in.yaml").write_text(PYTORCHJOB)
    assert main(["convert", "in.yaml", "-o", "out.yaml"]) == 0
    assert capsys.readouterr().out == ""
    assert yaml.safe_load(Path("out.yaml").read_text())["metadata"]["name"] == "mnist"
    assert main(["convert", "in.yaml", "-o", "none/out.yaml"]) == 2
    assert "--out none/out.yaml: No such file or directory" in capsys.readouterr().err


def test_strict_flag_reports_what_is_not_carried_over(capsys: pytest.CaptureFixture[str]) -> None:
    Path("job.yaml").write_text(PYTORCHJOB)
    assert main(["convert", "--strict", "job.yaml"]) == 0
    Path("job.yaml").write_text(PYTORCHJOB.replace("spec:\n  py", "spec:\n  runPolicy: {managedBy: a/b}\n  py", 1))
    assert main(["convert", "--strict", "job.yaml"]) == 1
    assert "not carried over: spec.runPolicy.managedBy (a/b)" in capsys.readouterr().err


def test_several_documents_become_several_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: etcd}\n"
    Path("all.yaml").write_text(f"{PYTORCHJOB}{service}---\n{RUNTIME}---\n{TRAINJOB}")
    assert main(["convert", "all.yaml"]) == 0
    out, err = capsys.readouterr()
    jobs = list(yaml.safe_load_all(out))
    assert [job["spec"]["replicas"] for job in jobs] == [4, 2]
    assert "not carried over: Service etcd: no training job: apply it by itself" in err
    assert main(["convert", "--name", "x", "all.yaml"]) == 2
    assert "--name: the file holds 2 jobs" in capsys.readouterr().err


def test_error_in_one_of_several_jobs_names_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    Path("all.yaml").write_text(f"{PYTORCHJOB}---\n{TRAINJOB}")
    assert main(["convert", "all.yaml"]) == 2
    assert "dtj: all.yaml: TrainJob mnist: spec.runtimeRef: " in capsys.readouterr().err


def test_shell_text_and_other_documents_may_hold_what_looks_like_a_template(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shell = changed(
        PYTORCHJOB,
        {
            f"spec.pytorchReplicaSpecs.{role}.template.spec.containers[0].command": [
                "sh",
                "-c",
                "# rank: $RANK\necho of:\\\n  world: $WORLD_SIZE\npython3 t.py\n",
            ]
            for role in ("Master", "Worker")
        },
    )
    config = "kind: ConfigMap\napiVersion: v1\ndata:\n  chat: '{{ messages }}'\n  home: ${HOME}\n"
    Path("job.yaml").write_text(f"{config}---\n{shell}")
    assert main(["convert", "job.yaml"]) == 0
    assert "not carried over: ConfigMap: no training job: apply it by itself" in capsys.readouterr().err


def test_json_on_one_line_is_no_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    command = {"spec.pytorchReplicaSpecs.Master.template.spec.containers[0].command": ["torchrun", "t.py"]}
    job = yaml.safe_load(changed(PYTORCHJOB, {**command, "spec.pytorchReplicaSpecs.Worker": None}))
    Path("job.json").write_text(json.dumps({"metadata": job.pop("metadata"), **job}))
    assert main(["convert", "job.json"]) == 0
    assert "script: t.py" in capsys.readouterr().out


def test_list_of_kubectl_is_converted(capsys: pytest.CaptureFixture[str]) -> None:
    items = yaml.safe_load(PYTORCHJOB)
    Path("list.yaml").write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [items]}))
    assert main(["convert", "list.yaml"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["metadata"]["name"] == "mnist"


def test_standard_input_and_a_runtime_file_are_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("runtime.yaml").write_text(RUNTIME)
    monkeypatch.setattr(sys, "stdin", io.StringIO(TRAINJOB))
    assert main(["convert", "--runtime", "runtime.yaml", "-"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["spec"]["image"] == "registry.example/base:1"


def test_command_line_stands_behind_two_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["torchrun", "--nproc-per-node=2", "train.py", "--note", "a b"]
    assert main(["convert", "--image", IMAGE, "--name", "mine", "--", *line]) == 0
    job = yaml.safe_load(capsys.readouterr().out)
    assert job["metadata"]["name"] == "mine"
    assert job["spec"]["entrypoint"] == {"script": "train.py", "args": ["--note", "a b"]}


def test_second_file_is_a_runtime_and_has_its_flag(capsys: pytest.CaptureFixture[str]) -> None:
    Path("job.yaml").write_text(TRAINJOB)
    assert main(["convert", "job.yaml", "runtime.yaml"]) == 2
    assert "give one FILE; the runtime of a TrainJob is --runtime runtime.yaml" in capsys.readouterr().err


FLAGS = {
    "an image for YAML": (["--image", IMAGE], PYTORCHJOB, "--image and --gpus are for scripts and command lines"),
    "GPUs for YAML": (["--gpus", "0"], PYTORCHJOB, "--image and --gpus are for scripts and command lines"),
    "a second command": (["--command", "python3 b.py"], PYTORCHJOB, "containers[0].command is in the file"),
    "a command for a launcher": (["--command", "x"], "torchrun t.py", "the file has a launcher's command already"),
    "an open quotation": (["--command", "a 'b"], PYTORCHJOB, "--command: No closing quotation"),
}


@pytest.mark.parametrize(("flags", "text", "message"), FLAGS.values(), ids=FLAGS)
def test_flag_that_contradicts_the_file_is_rejected(
    flags: list[str], text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("job.yaml").write_text(text)
    assert main(["convert", *flags, "job.yaml"]) == 2
    assert message in capsys.readouterr().err


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from _places(item, (*path, key))


@pytest.mark.parametrize("text", [PYTORCHJOB, f"{RUNTIME}---\n{TRAINJOB}"], ids=["PyTorchJob", "TrainJob"])
@pytest.mark.parametrize("wrong", [None, "x", 1, [], {}, [1], [{"a": 1}]], ids=repr)
def test_value_of_any_type_is_converted_or_refused_without_a_traceback(text: str, wrong: object) -> None:
    documents = json.loads(json.dumps(list(yaml.safe_load_all(text))))
    for *parents, last in _places(documents):
        changed = json.loads(json.dumps(documents))
        at = changed
        for key in parents:
            at = at[key]
        at[last] = wrong
        try:
            drafts = convert(yaml.safe_dump_all(changed), "job.yaml", Options())
        except InputError:
            continue
        assert [api.violations(draft.job) for draft in drafts] == [()] * len(drafts)


def test_pages_name_every_field_of_the_tables() -> None:
    rendered = pages.render()
    assert sorted(rendered) == ["pytorchjob.md", "slurm.md", "torchrun.md", "trainjob.md"]
    assert "`spec.runPolicy.backoffLimit` | in another form | spec.restart.maxRestarts" in rendered["pytorchjob.md"]
    assert "`spec.mlPolicy.torch.elasticPolicy.minNodes`" in rendered["trainjob.md"]
    assert "`--array, -a` | refused" in rendered["slurm.md"]
    assert "`--rdzv-backend` | not needed" in rendered["torchrun.md"]
