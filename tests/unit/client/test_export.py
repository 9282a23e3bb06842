"""`dtj export`: what it rejects itself, an interpreter that can't export, and a run whose weights another job reads."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.unit.client.support import LocalRun

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
Dtj = Callable[..., tuple[int, str, str]]


def interpreter(folder: Path, *sources: str) -> Path:
    """Returns this Python without any installed package, and with the named distributions' sources."""
    script = folder / "python"
    path = os.pathsep.join(str(ROOT / source / "src") for source in sources)
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{path}" exec {sys.executable} -S "$@"\n')
    script.chmod(0o755)
    return script


@pytest.mark.parametrize(
    ("sources", "message"),
    [((), "No module named 'dtj_trainer'"), (("trainer-image", "contract"), "torch, numpy, safetensors not installed")],
    ids=["no trainer", "no torch"],
)
def test_interpreter_without_torch_is_named_with_the_remedy(
    tmp_path: Path, dtj: Dtj, sources: tuple[str, ...], message: str
) -> None:
    python = interpreter(tmp_path, *sources)
    code, out, err = dtj("export", tmp_path, "-o", tmp_path / "m.safetensors", "--python", python)
    assert (code, out) == (1, "")
    (line,) = err.splitlines()
    assert line.startswith(f"dtj: --python {python}: ")
    assert message in line
    assert line.endswith("install dtj-trainer[torch] there, or name another interpreter by --python")


def test_interpreter_that_is_not_there_is_named(tmp_path: Path, dtj: Dtj) -> None:
    code, _, err = dtj("export", tmp_path, "-o", tmp_path / "m.safetensors", "--python", tmp_path / "none")
    assert (code, err) == (
        1,
        f"dtj: --python {tmp_path / 'none'}: No such file or directory; name another interpreter\n",
    )


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ("{", "it can't be read as the status of a run"),
        ("[]", "it can't be read as the status of a run"),
        ('{"status": {}}', "this run has reported no checkpoint; name the folder of its checkpoints"),
    ],
)
def test_run_without_a_checkpoint_is_bad_input(tmp_path: Path, dtj: Dtj, status: str, message: str) -> None:
    (tmp_path / "status.json").write_text(status)
    code, _, err = dtj("export", tmp_path, "-o", tmp_path / "m.safetensors")
    assert code == 2
    assert message in err


def examples(folder: Path) -> None:
    """Makes the paths of the example jobs valid in a folder."""
    (folder / "examples").symlink_to(EXAMPLES)


def job(name: str, **env: str) -> str:
    """Returns an example job with more variables."""
    found = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    found["spec"]["template"]["spec"]["containers"][0].setdefault("env", []).extend(
        {"name": key, "value": value} for key, value in env.items()
    )
    return yaml.safe_dump(found)


def outputs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*/*") if path.parent.name != "logs"}


@pytest.mark.thorough
@pytest.mark.torch
@pytest.mark.timeout(600)
def test_trained_model_is_exported_and_a_killed_inference_ends_with_the_same_outputs(
    start: Callable[..., LocalRun], dtj: Dtj, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    examples(tmp_path)
    training = yaml.safe_load((EXAMPLES / "digits.yaml").read_text())
    training["spec"] |= {"replicas": 2, "entrypoint": {"module": "dtj_trainer.examples.digits", "args": ["--epochs=2"]}}
    run = start(job=yaml.safe_dump(training))
    code, trained = run.wait(240)
    assert code == 0, run.lines()

    shared = tmp_path / ".dtj/volumes/shared/default"
    model = shared / "digits/model.safetensors"
    code, out, err = dtj("export", run.run_dir, "-o", model, "--model", "dtj_trainer.examples.digits:mlp")
    assert code == 0, err
    assert out.startswith(f"step {trained['status']['checkpoint']['step']} of digits: 6 tensors, ")
    code, again, err = dtj("export", shared / "digits", "-o", model)
    assert (code, again, err) == (0, out, ""), "a job's folder is that of its run, and nothing else is printed"
    code, out, err = dtj("export", shared / "digits", "-o", tmp_path / "m.pt2", "--model", "no.such:model")
    assert (code, out) == (2, "")
    assert err.startswith("dtj: --model no.such:model: importing no.such failed")

    run = start(job=(EXAMPLES / "batch-inference.yaml").read_text())
    code, _ = run.wait(240)
    assert code == 0, run.lines()
    undisturbed = outputs(shared / "batch-inference")
    assert sorted(undisturbed) == [f"shard-{number:05d}.safetensors" for number in range(29)]

    run = start("--fresh", "--kill", "worker:1@step=8", job=job("batch-inference", SHARD_SECONDS="0.1"))
    code, ended = run.wait(240)
    assert code == 0, run.lines()
    assert ended["status"]["attempt"] == 2
    assert outputs(shared / "batch-inference") == undisturbed, "to the bit, and nothing else is left there"
    computed = [
        line for path in run.run_dir.glob("*.log") for line in path.read_text().splitlines() if "computed" in line
    ]
    assert 29 <= len(computed) <= 31, "one shard of each rank, at most, is computed twice"


@pytest.mark.thorough
@pytest.mark.torch
@pytest.mark.timeout(600)
def test_killed_rank_continues_its_run_in_mlflow(start: Callable[..., LocalRun], tmp_path: Path) -> None:
    examples(tmp_path)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    tracking = (EXAMPLES / "tracking.yaml").read_text()
    run = start("--kill", "worker:0@step=70", job=tracking, environ={"MLFLOW_TRACKING_URI": uri})
    code, ended = run.wait(400)
    assert code == 0, run.lines()
    assert ended["status"]["attempt"] == 2
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    (found,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert (found.info.status, found.info.run_name) == ("FINISHED", "tracking")
    assert found.data.tags["dtj.uid"] == ended["metadata"]["uid"]
    steps = [metric.step for metric in client.get_metric_history(found.info.run_id, "loss")]
    assert sorted(set(steps)) == list(range(200)), "the steps of both attempts"
