"""Launchers in the command of a job: what is taken out, what stays, and how many ranks follow."""

from __future__ import annotations

import shlex
import subprocess
from typing import Any

import pytest

from dtj_core.api.launcher import find, unwrap
from dtj_core.api.v1alpha1 import Spec

PYTHON = ["python3", "-u"]
# name: (command, command of a rank, ranks of each of 2 pods, other fields)
TAKEN_OUT: dict[str, tuple[str, list[str], int | None, dict[str, Any]]] = {
    "torchrun": ("torchrun --nproc-per-node=4 t.py --lr 1", [*PYTHON, "t.py", "--lr", "1"], 4, {}),
    "underscores": ("torchrun --nproc_per_node 2 t.py", [*PYTHON, "t.py"], 2, {}),
    "as many as there are GPUs": ("torchrun --nproc-per-node gpu t.py", [*PYTHON, "t.py"], None, {}),
    "as many as the job has": ("torchrun t.py", [*PYTHON, "t.py"], None, {}),
    "numbers of pods": ("torchrun --nnodes=1:4 t.py", [*PYTHON, "t.py"], None, {"nodes": (1, 4)}),
    "Kubeflow's rendezvous": (
        "torchrun --nnodes=$(PET_NNODES) --rdzv-backend=c10d --rdzv-endpoint=$(MASTER_ADDR):29500 t.py",
        [*PYTHON, "t.py"],
        None,
        {"nodes": None},
    ),
    "a module": ("torchrun -m pkg.train --a", [*PYTHON, "-m", "pkg.train", "--a"], None, {}),
    "no Python": ("torchrun --no-python ./run --a", ["./run", "--a"], None, {}),
    "arguments that look like flags": (
        "torchrun t.py --nproc-per-node 9", [*PYTHON, "t.py", "--nproc-per-node", "9"], None, {}
    ),
    "python -m": ("python3 -u -m torch.distributed.run --nproc_per_node=2 t.py", [*PYTHON, "t.py"], 2, {}),
    "the interpreter that has torch": (
        "/opt/venv/bin/python -m torch.distributed.run t.py", ["/opt/venv/bin/python", "-u", "t.py"], None, {}
    ),
    "the old name with the environment": (
        "python -m torch.distributed.launch --use_env t.py", ["python", "-u", "t.py"], None, {}
    ),
    "accelerate": (
        "accelerate launch --num_processes 8 --num_machines 2 --mixed_precision bf16 --cpu t.py",
        [*PYTHON, "t.py"],
        4,
        {"env": {"ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_USE_CPU": "true"}, "nodes": (2, 2)},
    ),
    "accelerate's flag without a value": (
        "accelerate launch --num_machines 2 --num_processes 8 --same_network --mixed_precision bf16 t.py",
        [*PYTHON, "t.py"],
        4,
        {"env": {"ACCELERATE_MIXED_PRECISION": "bf16"}},
    ),
    "deepspeed's other name of a flag": (
        "deepspeed --no_local_rank --num_accelerators 8 --no_ssh_check -q t.py", [*PYTHON, "t.py"], 8, {}
    ),
    "horovodrun's flags in front of the command": (
        "horovodrun -np 4 --blacklist-cooldown-range 60 120 -i /root/.ssh/id --hierarchical-allreduce python t.py",
        ["python", "t.py"],
        2,
        {"unused": ("--blacklist-cooldown-range", "--hierarchical-allreduce")},
    ),
    "deepspeed without its argument": ("deepspeed --no_local_rank --num_gpus 8 t.py", [*PYTHON, "t.py"], 8, {}),
    "composer": (
        "composer -n 4 --world_size 12 --node_rank 1 --master_addr a --stdout f -v t.py --lr 1",
        [*PYTHON, "t.py", "--lr", "1"],
        4,
        {"nodes": (3, 3), "unused": ("--stdout",)},
    ),
    "composer's number of all ranks": ("composer --world_size=8 t.py", [*PYTHON, "t.py"], 4, {"nodes": None}),
    "composer with a module": ("composer -m pkg.train --a", [*PYTHON, "-m", "pkg.train", "--a"], None, {}),
    "composer with a command": ("composer -n 2 -c ./run --a", ["./run", "--a"], 2, {}),
    "composer's module": ("python -m composer.cli --nproc 2 t.py", ["python", "-u", "t.py"], 2, {}),
    "horovodrun": (
        "horovodrun -np 4 -H a:2,b:2 --timeline-filename /t.json python train.py --lr 1",
        ["python", "train.py", "--lr", "1"],
        2,
        {"engine": "horovod", "env": {"HOROVOD_TIMELINE": "/t.json"}},
    ),
    "horovodrun by its path": (
        "/opt/venv/bin/horovodrun --num-proc=2 --gloo /opt/venv/bin/python -m pkg",
        ["/opt/venv/bin/python", "-m", "pkg"],
        1,
        {"engine": "horovod"},
    ),
    "flags without effect": (
        "torchrun --max-restarts=3 --log-dir /tmp --monitor-interval 1 t.py",
        [*PYTHON, "t.py"],
        None,
        {"unused": ("--max-restarts", "--log-dir")},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("command", "rank", "processes", "fields"), TAKEN_OUT.values(), ids=TAKEN_OUT)
def test_launcher_is_taken_out(command: str, rank: list[str], processes: int | None, fields: dict[str, Any]) -> None:
    found = unwrap(shlex.split(command), replicas=2)
    assert found is not None
    assert (found.command, found.processes) == (rank, processes)
    assert {name: getattr(found, name) for name in fields} == fields


STAYS = {
    "a configuration file": "accelerate launch --config_file a.yaml t.py",
    "a plugin": "accelerate launch --use_fsdp t.py",
    "an unknown flag": "torchrun --colour red t.py",
    "a number that the pod knows": "torchrun --nproc-per-node=cpu t.py",
    "a variable": "torchrun --nproc-per-node=$(N) t.py",
    "ranks that two pods can't share": "accelerate launch --num_processes 7 t.py",
    "too many ranks": "torchrun --nproc-per-node=65 t.py",
    "no ranks": "torchrun --nproc-per-node=0 t.py",
    "an argument that composer fills in": "composer t.py --log rank-$RANK",
    "a folder that composer fills in": "composer t.py ~/data",
    "autotuning": "deepspeed --autotuning run t.py",
    "horovodrun by MPI": "horovodrun --mpi -np 2 python t.py",
    "no script": "torchrun --nproc-per-node 2",
    "a path, whose own first line names the interpreter": "/opt/venv/bin/torchrun t.py",
}


@pytest.mark.parametrize("command", STAYS.values(), ids=STAYS)
def test_launcher_that_has_to_act_stays(command: str) -> None:
    assert find(shlex.split(command))[0]
    assert unwrap(shlex.split(command), replicas=2) is None


@pytest.mark.parametrize(
    "command",
    ["python3 t.py torchrun", "bash -c 'torchrun t.py'", "accelerate env", "python -m t torchrun", "./torchrun.sh"],
)
def test_other_commands_start_no_launcher(command: str) -> None:
    assert find(shlex.split(command))[0] == ""
    assert unwrap(shlex.split(command), replicas=1) is None


def test_number_of_all_ranks_is_not_divided_among_pods_that_change() -> None:
    assert unwrap(["accelerate", "launch", "--num_processes", "8", "t.py"], replicas=None) is None


@pytest.mark.parametrize(
    ("launcher", "python", "argument"),
    [
        ("python -m torch.distributed.launch", "python", "--local-rank"),
        ("'/opt/my env/bin/python' -m torch.distributed.launch", "'/opt/my env/bin/python'", "--local-rank"),
        ("deepspeed --num_gpus 2", "python3", "--local_rank"),
    ],
)
def test_argument_with_the_local_rank_is_still_passed(launcher: str, python: str, argument: str) -> None:
    """Both launchers put it in front of the script's own arguments, and some scripts require it."""
    found = unwrap([*shlex.split(launcher), "a b.py", "--text", "it's $HOME"], replicas=1)
    assert found is not None
    text = found.command[2].replace(f"exec {python} -u", "printf '%s\\n'")
    answer = subprocess.run(
        ["sh", "-c", text, *found.command[3:]], capture_output=True, text=True, env={"LOCAL_RANK": "3"}
    )
    assert answer.stdout.splitlines() == ["a b.py", f"{argument}=3", "--text", "it's $HOME"]


def spec(command: list[str], **fields: Any) -> Spec:
    container = {"name": "trainer", "image": "i", "command": command, **fields.pop("container", {})}
    return Spec.model_validate({"replicas": 2, "template": {"spec": {"containers": [container]}}, **fields})


def test_spec_decides_about_the_ranks_before_the_launcher_does() -> None:
    command = ["torchrun", "--nproc-per-node", "4", "t.py"]
    gpus = {"container": {"resources": {"limits": {"nvidia.com/gpu": "8"}}}}
    assert spec(command).processes == 4
    assert spec(command, processesPerPod=3).processes == 3
    assert spec(command, **gpus).processes == 4, "torchrun would leave GPUs idle too"
    assert spec(["torchrun", "t.py"], **gpus).processes == 8
    assert spec(["torchrun", "t.py"]).processes == 1


def test_launcher_may_stand_in_args_or_in_the_entrypoint() -> None:
    split = spec(["torchrun"], container={"args": ["--nproc-per-node=2", "t.py"]})
    module = Spec.model_validate(
        {
            "replicas": 1,
            "image": "i",
            "entrypoint": {"module": "torch.distributed.run", "args": ["--nproc-per-node=2", "t.py"]},
        }
    )
    for each in (split, module):
        assert (each.command, each.processes) == ([*PYTHON, "t.py"], 2)
