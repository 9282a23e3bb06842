"""A launcher in the command: the pods run the script itself, an event reports it, and pods that run keep theirs."""

from __future__ import annotations

import os
import subprocess
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from dtj_contract import names
from dtj_core.plan import plan
from dtj_core.plan.model import Apply, Observed
from dtj_core.plan.times import rfc3339
from tests.unit.plan.objects import NOW, SETTINGS, agent, job, pods, service, started

TORCHRUN = ["torchrun", "--nproc-per-node=4", "train.py", "--lr", "1"]


def launched(command: list[str], **spec: Any) -> dict[str, Any]:
    container = {"name": "trainer", "command": command}
    return {"template": {"spec": {"containers": [container]}}, "entrypoint": None, **spec}


def trainer(stateful_set: Any) -> Any:
    return stateful_set["spec"]["template"]["spec"]["containers"][0]


def variable(container: Any, name: str) -> Any:
    return next((entry["value"] for entry in container["env"] if entry["name"] == name), None)


def events(**spec: Any) -> list[tuple[str, str, str]]:
    first = plan(job(**spec), Observed(), NOW, SETTINGS)
    return [(e.type, e.reason, e.message) for e in first.events if e.reason.startswith("Launcher")]


def test_pods_run_the_script_itself() -> None:
    container = trainer(started(**launched(TORCHRUN))[1])
    assert container["command"][2:] == ["--", "python3", "-u", "train.py", "--lr", "1"]
    assert variable(container, names.ENV_PROCESSES_PER_POD) == "4"


def test_variables_of_accelerate_are_set_unless_the_job_sets_them() -> None:
    command = ["accelerate", "launch", "--cpu", "--mixed_precision", "bf16", "t.py"]
    own = [{"name": "ACCELERATE_MIXED_PRECISION", "value": "no"}]
    container = trainer(started(**launched(command), env=own)[1])
    assert variable(container, "ACCELERATE_USE_CPU") == "true"
    assert [e["value"] for e in container["env"] if e["name"] == "ACCELERATE_MIXED_PRECISION"] == ["no"]


EVENTS: dict[str, tuple[dict[str, Any], tuple[str, str, str]]] = {
    "taken out": (
        launched(TORCHRUN),
        (
            "Normal",
            "LauncherRemoved",
            "torchrun is taken out of the command, because the agents start the ranks: 4 ranks in each pod",
        ),
    ),
    "numbers that differ": (
        launched(["torchrun", "--nnodes=2", "--nproc-per-node=4", "--max-restarts=3", "t.py"], processesPerPod=1),
        (
            "Warning",
            "LauncherRemoved",
            "torchrun is taken out of the command, because the agents start the ranks: 1 rank in each pod;"
            " the job has 3 pods (spec.replicas); spec.processesPerPod replaces its 4; without effect: --max-restarts",
        ),
    ),
    "kept": (
        launched(["accelerate", "launch", "--use_fsdp", "t.py"], processesPerPod=2),
        (
            "Normal",
            "LauncherKept",
            "accelerate launch stays in the command, because only the launcher can act on its flags: the agent starts"
            " one in each pod, with 2 as PET_NPROC_PER_NODE, and restarts all of them together",
        ),
    ),
    "in shell text": (
        launched(["bash", "-c", "cd /app && deepspeed --num_gpus 4 t.py"]),
        (
            "Warning",
            "LauncherKept",
            "deepspeed in the shell text trains in each of the 3 pods by itself: make it the command without a shell,"
            " or pass --no_ssh --hostfile FILE --node_rank $RANK --master_addr $MASTER_ADDR --master_port $MASTER_PORT",
        ),
    ),
}


@pytest.mark.parametrize(("spec", "event"), EVENTS.values(), ids=EVENTS)
def test_event_reports_what_became_of_the_launcher(spec: dict[str, Any], event: tuple[str, str, str]) -> None:
    assert events(**spec) == [event]


def test_command_without_a_launcher_has_no_such_event() -> None:
    assert events() == []


@pytest.mark.parametrize(
    "text",
    [
        "accelerate launch --machine_rank $RANK --num_machines 3 t.py",
        "deepspeed --no_ssh \\\n --node_rank $RANK t.py",
        "deepspeed -H /hosts t.py",
        "composer -n 8 --world_size 24 t.py",
        "pip install deepspeed && python t.py",
        "python t.py --strategy deepspeed",
        "torchrun t.py",
    ],
)
def test_shell_text_that_gives_the_place_has_no_event(text: str) -> None:
    assert events(**launched(["sh", "-c", text])) == []


@pytest.mark.parametrize(
    "text",
    [
        "composer -n 8 t.py",
        "python -m composer.cli t.py",
        "deepspeed t.py",
        "set -e\nexec /opt/bin/deepspeed \\\n t.py",
        "nohup deepspeed t.py",
        "A=1 B=2 time accelerate launch t.py",
        "pip install deepspeed && A=1 python3 -u -m deepspeed.launcher.runner t.py",
        "(accelerate-launch t.py)",
        "python -m accelerate.commands.launch t.py",
    ],
)
def test_shell_text_that_does_not_has_a_warning(text: str) -> None:
    ((kind, reason, _),) = events(**launched(["sh", "-c", text]))
    assert (kind, reason) == ("Warning", "LauncherKept")


def test_shell_text_of_a_single_pod_has_no_event() -> None:
    assert events(**launched(["sh", "-c", "deepspeed t.py"], replicas=1)) == []


def placed(command: list[str], **spec: Any) -> list[str]:
    found = trainer(started(**launched(command, **spec))[1])["command"]
    return list(found[found.index("--") + 1 :])


ECHO = 'printf "%s\\n" "$@"; test ! -f "$3" || cat "$3"'


def run_placed(tmp_path: Path, program: str, arguments: list[str]) -> list[str]:
    """Runs what the pods run, with a program that prints its arguments and its hostfile. Returns the lines."""
    (tmp_path / program).write_text(f"#!/bin/sh\n{ECHO}\n")
    (tmp_path / program).chmod(0o755)
    place = {"WORLD_SIZE": "3", "RANK": "1", "MASTER_ADDR": "j-0.j", "MASTER_PORT": "29500", "PET_NPROC_PER_NODE": "4"}
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        placed([program, *arguments]),
        env=place | {"PATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return done.stdout.splitlines()


def test_accelerate_that_stays_gets_its_place_as_flags(tmp_path: Path) -> None:
    """Without these it would train in each pod by itself, and the job be Complete."""
    given = ["launch", "--use_fsdp", "--machine_rank", "0", "--num_machines", "2", "my t.py", "--lr", "1"]
    own = ["--num_machines", "3", "--machine_rank", "1", "--main_process_ip", "j-0.j", "--main_process_port", "29500"]
    own += ["--deepspeed_multinode_launcher", "standard"]
    assert run_placed(tmp_path, "accelerate", given) == [
        "launch", *own, "--num_processes", "12", "--use_fsdp", "my t.py", "--lr", "1",
    ]  # fmt: skip


def test_deepspeed_that_stays_gets_a_hostfile_of_all_pods(tmp_path: Path) -> None:
    given = ["--no_such_flag=1", "--hostfile", "mine", "--num_nodes", "2", "t.py"]
    *flags, first, second, third = run_placed(tmp_path, "deepspeed", given)
    assert flags[:2] == ["--no_ssh", "--hostfile"]
    assert flags[3:] == [
        "--node_rank", "1", "--master_addr", "j-0.j", "--master_port", "29500", "--no_such_flag", "1", "t.py",
    ]  # fmt: skip
    assert [first, second, third] == ["pod-0 slots=4", "pod-1 slots=4", "pod-2 slots=4"]


@pytest.mark.parametrize(
    ("given", "ranks"), [(["t.py", "$X"], 4), (["-n", "2", "--world_size", "4", "--node_rank=0", "t.py", "$X"], 2)]
)
def test_composer_that_stays_gets_its_place_and_its_ranks_as_flags(
    given: list[str], ranks: int, tmp_path: Path
) -> None:
    """From WORLD_SIZE, the number of pods, it would take a pod for all ranks."""
    own = ["-n", f"{ranks}", "--world_size", f"{3 * ranks}", "--node_rank", "1", "--master_addr", "j-0.j"]
    assert run_placed(tmp_path, "composer", given) == [*own, "--master_port", "29500", "t.py", "$X"]


def test_composer_that_stays_in_a_single_pod_knows_its_ranks() -> None:
    """LOCAL_WORLD_SIZE, which composer would take, is 1 for a launcher."""
    assert "-n $PET_NPROC_PER_NODE" in placed(["/opt/bin/composer", "t.py"], replicas=1)[2]


def test_number_of_ranks_in_a_configuration_file_is_left_to_it() -> None:
    assert "num_processes" not in placed(["accelerate", "launch", "--config_file", "c.yaml", "t.py"])[2]


@pytest.mark.parametrize("command", [["accelerate", "launch", "--use_fsdp", "t.py"], ["/opt/bin/deepspeed", "t.py"]])
def test_launcher_that_stays_in_a_single_pod_is_left_as_it_is(command: list[str]) -> None:
    assert placed(command, replicas=1) == command


def test_torchrun_that_stays_is_left_as_it_is() -> None:
    command = ["/opt/venv/bin/torchrun", "--nnodes", "3", "t.py"]
    assert placed(command) == command


def test_pods_of_an_older_version_keep_their_launcher_when_they_are_repaired() -> None:
    """A pod that comes back must run as the others do, whose operator knew nothing of launchers."""
    spec = launched(TORCHRUN)
    stored, child = started(**spec)
    child = deepcopy(child)
    child["metadata"] |= {"generation": 2, "creationTimestamp": rfc3339(NOW)}
    container = trainer(child)
    container["command"] = [*container["command"][:3], *TORCHRUN]
    for entry in container["env"]:
        if entry["name"] == names.ENV_PROCESSES_PER_POD:
            entry["value"] = "1"
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=agent())
    actions = plan(stored, seen, NOW + 5, SETTINGS).actions
    (body,) = [a.body for a in actions if isinstance(a, Apply) and a.body["kind"] == "StatefulSet"]
    assert trainer(body)["command"] == container["command"]
    assert variable(trainer(body), names.ENV_PROCESSES_PER_POD) == "1"
