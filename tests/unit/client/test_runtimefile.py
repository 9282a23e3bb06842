"""`dtj run` of a job with a runtime, in one file or in two."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtj import jobfile, runtimefile
from dtj.errors import InputError

RUNTIME = """
apiVersion: training.dtj.dev/v1alpha1
kind: DistributedTrainingRuntime
metadata: {name: cpu}
spec: {image: "a:1", backend: gloo}
"""
JOB = """
apiVersion: training.dtj.dev/v1alpha1
kind: DistributedTrainingJob
metadata: {name: six-lines}
spec:
  runtimeRef: {name: cpu}
  entrypoint: {module: train}
"""
PLAIN = JOB.replace("runtimeRef: {name: cpu}", "image: b")


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_job_gets_the_runtime_of_its_own_file_or_of_another(tmp_path: Path) -> None:
    both = write(tmp_path, "both.yaml", f"{RUNTIME}---{JOB}")
    job, other = write(tmp_path, "job.yaml", JOB), write(tmp_path, "runtime.yaml", RUNTIME)
    expected = {"image": "a:1", "backend": "gloo", "entrypoint": {"module": "train"}}
    assert runtimefile.load_one(both)["spec"] == expected
    assert runtimefile.load_one(job, other)["spec"] == expected
    assert runtimefile.load_one(write(tmp_path, "plain.yaml", PLAIN))["spec"]["image"] == "b"


@pytest.mark.parametrize(
    ("job", "runtime", "message"),
    [
        (JOB, None, "spec.runtimeRef.name: no DistributedTrainingRuntime cpu in .*give its file with --runtime"),
        (JOB, RUNTIME.replace("name: cpu", "name: gpu"), "no DistributedTrainingRuntime cpu in .* and "),
        (JOB, RUNTIME.replace("backend: gloo", "replicas: 2"), "spec.replicas: no field of a runtime"),
        (JOB, JOB, "not a runtime but "),
        (PLAIN, RUNTIME, "the job names no runtime: write spec.runtimeRef"),
        (RUNTIME, None, "empty; it must hold a DistributedTrainingJob"),
        (f"{JOB}---{JOB}", None, "holds 2 jobs"),
    ],
)
def test_file_without_the_right_runtime_is_an_error(
    job: str, runtime: str | None, message: str, tmp_path: Path
) -> None:
    path = write(tmp_path, "job.yaml", job)
    other = None if runtime is None else write(tmp_path, "runtime.yaml", runtime)
    with pytest.raises(InputError, match=message):
        runtimefile.load_one(path, other)


def test_submit_leaves_a_runtime_to_kubectl(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="use kubectl apply -f"):
        jobfile.load(write(tmp_path, "both.yaml", f"{RUNTIME}---{JOB}"))
