"""`dtj run -- train.py`: the job that it builds, the flags that it rejects, and a run of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj.errors import InputError
from dtj.main import main, parser
from dtj.script_job import Machine, ScriptRun, job
from dtj_core.api.read import validate
from tests.unit.client.support import SCRIPT, job_yaml

LAPTOP, SERVER = Machine(gpus=0, cpus=6), Machine(gpus=8, cpus=96)
Dtj = Callable[..., tuple[int, str, str]]


def spec(machine: Machine = LAPTOP, *, here: bool = True, **flags: Any) -> dict[str, Any]:
    """Returns the spec of a job, which the API server would take."""
    built = job(ScriptRun(**({"command": ["train.py"]} | flags)), machine, here=here)
    validate(built)
    found: dict[str, Any] = built["spec"]
    return found


@pytest.mark.parametrize(
    ("command", "entrypoint"),
    [
        ("train.py", {"script": "train.py"}),
        ("train.py --lr 0.1 -- --lr", {"script": "train.py", "args": ["--lr", "0.1", "--", "--lr"]}),
        ("python train.py -m 3", {"script": "train.py", "args": ["-m", "3"]}),
        ("/usr/bin/python3.11 -u dir/run 3", {"script": "dir/run", "args": ["3"]}),
        ("-m package.module --lr 1", {"module": "package.module", "args": ["--lr", "1"]}),
        ("python3 -u -m package.module", {"module": "package.module"}),
    ],
)
def test_command_becomes_the_entrypoint(command: str, entrypoint: dict[str, Any]) -> None:
    assert spec(command=command.split())["entrypoint"] == entrypoint


@pytest.mark.parametrize(
    ("machine", "flags", "backend", "processes"),
    [
        (LAPTOP, {}, "gloo", 1),
        (LAPTOP, {"nproc": "4"}, "gloo", 4),
        (LAPTOP, {"nproc": "cpu"}, "gloo", 6),
        (LAPTOP, {"nproc": "auto"}, "gloo", 6),
        (SERVER, {}, "nccl", 8),
        (SERVER, {"nproc": "gpu"}, "nccl", 8),
        (SERVER, {"nproc": "auto"}, "nccl", 8),
        (SERVER, {"nproc": "2"}, "nccl", 2),
        (SERVER, {"backend": "gloo"}, "gloo", 1),
    ],
)
def test_ranks_and_backend_follow_from_flags_and_machine_as_with_torchrun(
    machine: Machine, flags: dict[str, str], backend: str, processes: int
) -> None:
    built = spec(machine, **flags)
    assert (built["backend"], built["processesPerPod"], built["replicas"]) == (backend, processes, 1)


@pytest.mark.parametrize(
    ("command", "flags", "replicas", "processes"),
    [
        ("torchrun --nproc-per-node 3 t.py --a", {}, 1, 3),
        (".venv/bin/torchrun --nproc-per-node 3 t.py --a", {}, 1, 3),
        ("torchrun --nnodes 2 --nproc-per-node 3 t.py --a", {}, 2, 3),
        ("accelerate launch --num_machines 2 --num_processes 8 t.py --a", {}, 2, 4),
        ("python -m torch.distributed.run --nproc_per_node=3 t.py --a", {"nproc": "2", "nnodes": "3"}, 3, 2),
    ],
)
def test_launcher_is_taken_out_and_its_numbers_hold(
    command: str, flags: dict[str, str], replicas: int, processes: int
) -> None:
    built = spec(LAPTOP, command=command.split(), **flags)
    assert built["entrypoint"] == {"script": "t.py", "args": ["--a"]}
    assert (built["replicas"], built["processesPerPod"]) == (replicas, processes)


def test_job_of_a_cluster_has_its_pods_gpus_and_volume() -> None:
    built = spec(LAPTOP, here=False, backend="nccl", nnodes="2", nproc="4")
    assert (built["replicas"], built["processesPerPod"], built["image"]) == (2, 4, "dtj-trainer:cuda")
    assert built["checkpoint"] == {"volume": {"claimName": "shared"}}
    (container,) = built["template"]["spec"]["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "4"}}


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("dir/Train_GPT.v2.py", "train-gpt-v2"),
        ("-m package.my_module", "my-module"),
        ("007.py", "train"),
        (f"{'a' * 60}.py", "a" * 52),
        (f"{'a' * 51}__b.py", "a" * 51),
    ],
)
def test_job_is_named_after_its_script(command: str, name: str) -> None:
    assert job(ScriptRun(command=command.split()), LAPTOP, here=True)["metadata"]["name"] == name


@pytest.mark.parametrize(
    ("machine", "flags", "message"),
    [
        (LAPTOP, {"nproc": "0"}, "--nproc 0: write a whole number of 1 to 64, or gpu, cpu, auto"),
        (LAPTOP, {"nproc": "two"}, "--nproc two: write a whole number"),
        (LAPTOP, {"nproc": "65"}, "--nproc 65: write a whole number of 1 to 64"),
        (SERVER, {"nproc": "cpu"}, "--nproc cpu: 96 here; write a number of 1 to 64"),
        (LAPTOP, {"nproc": "gpu"}, "--nproc gpu: this machine has no NVIDIA GPU; write a number, cpu or auto"),
        (LAPTOP, {"nnodes": "0"}, "--nnodes 0: write a whole number of 1 to 1024"),
        (LAPTOP, {"nnodes": "1:4"}, "--nnodes 1:4: write a whole number"),
        (LAPTOP, {"backend": "mpi"}, "--backend mpi: write gloo or nccl"),
        (LAPTOP, {"backend": "nccl"}, "--backend nccl: this machine has no NVIDIA GPU; write --backend gloo"),
        (SERVER, {"nproc": "9"}, "--nproc 9: nccl takes a GPU for each rank, and this machine has 8"),
        (SERVER, {"nnodes": "2"}, "--nnodes 2: with nccl the pods would share the GPUs of this machine"),
        (LAPTOP, {"name": "My_Job"}, "--name My_Job: write a-z, 0-9 and '-'"),
        (LAPTOP, {"name": "n" * 53}, "at most 52 characters"),
        (LAPTOP, {"command": []}, "--: nothing follows; write the script"),
        (LAPTOP, {"command": ["torchrun", "--colour", "t.py"]}, "torchrun: dtj starts the ranks itself, and"),
        (LAPTOP, {"command": ["python"]}, "python: write python train.py, or python -m package.module"),
        (LAPTOP, {"command": ["python", "-c", "1"]}, "-c: write python train.py, or python -m package.module"),
        (LAPTOP, {"command": ["-m"]}, "-m: no module follows; write -m package.module"),
        (LAPTOP, {"command": ["./run.sh"]}, "./run.sh: not a Python script; write train.py or -m package.module"),
    ],
)
def test_wrong_flag_is_named_with_what_to_write(machine: Machine, flags: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        job(ScriptRun(**({"command": ["train.py"]} | flags)), machine, here=True)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("visible", "gpus"), [(None, 4), ("", 0), ("-1", 0), ("2", 1), ("0,1,-1,2", 2), ("0,1,2,3,4,5", 4)]
)
def test_gpus_are_counted_as_cuda_shows_them(tmp_path: Path, visible: str | None, gpus: int) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia10", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert Machine.read(environment, tmp_path).gpus == gpus


def test_flags_of_the_script_stay_its_own() -> None:
    flags = parser().parse_args(["run", "--nproc", "2", "--fresh", "--", "train.py", "--fresh", "--help", "--version"])
    assert flags.script == ["train.py", "--fresh", "--help", "--version"]
    assert (flags.file, flags.nproc, flags.fresh) == (None, "2", True)


@pytest.mark.parametrize("form", [["-o", "yaml"], []])
def test_dry_run_prints_a_job_file_that_dtj_run_takes(tmp_path: Path, dtj: Dtj, form: list[str]) -> None:
    command = ["run", "--nproc", "2", "--name", "mine", "--backend", "gloo", "--dry-run", *form]
    code, out, err = dtj(*command, "--", "train.py", "--lr", "0.1")
    assert (code, err) == (0, "")
    (tmp_path / "job.yaml").write_text(out)
    code, again, _ = dtj("run", tmp_path / "job.yaml", "--dry-run", "-o", "json")
    assert code == 0
    assert json.loads(again) == yaml.safe_load(out)
    assert json.loads(again)["metadata"] == {"name": "mine"}
    assert json.loads(again)["spec"]["entrypoint"] == {"script": "train.py", "args": ["--lr", "0.1"]}


def test_dry_run_quotes_an_argument_that_kubectl_would_read_as_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--nproc", "1", "--backend", "gloo", "--dry-run", "--", "train.py", "--lr", "1e-4"]) == 0
    assert "- '1e-4'\n" in capsys.readouterr().out


def test_file_and_script_together_are_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "job.yaml", "--", "train.py"])
    assert ended.value.code == 2
    assert "job.yaml and --: give a FILE, or a script after --, and not both" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "value", "field"),
    [
        ("--nproc", "2", "spec.processesPerPod"),
        ("--nnodes", "2", "spec.replicas"),
        ("--backend", "gloo", "spec.backend"),
        ("--name", "x", "metadata.name"),
    ],
)
def test_flag_of_a_script_beside_a_file_names_the_field(
    tmp_path: Path, dtj: Dtj, flag: str, value: str, field: str
) -> None:
    (tmp_path / "job.yaml").write_text(job_yaml())
    code, _, err = dtj("run", tmp_path / "job.yaml", flag, value)
    assert code == 2
    assert f"dtj: {flag} {value}: only for `dtj run -- train.py`; in a job file write {field}" in err


def test_script_runs_to_its_end_without_a_job_file(tmp_path: Path) -> None:
    (tmp_path / "my_script.py").write_text(SCRIPT.read_text())
    command = ["run", "--nproc", "2", "--backend", "gloo", "-o", "json", "--", "my_script.py", "5"]
    done = subprocess.run(
        [sys.executable, "-m", "dtj.main", *command], cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout)
    assert ended["spec"]["processesPerPod"] == 2
    assert {one["type"]: one["status"] for one in ended["status"]["conditions"]}["Complete"] == "True"
    assert (tmp_path / ".dtj/volumes/shared/default/my-script/own.txt").read_text() == "5"
