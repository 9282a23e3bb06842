"""A launcher in the command serves MASTER_PORT itself, so the agent must leave it free."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from dtj_agent.workers.launchers import is_launcher
from tests.unit.agent.harness import running

LAUNCHERS = {
    "torchrun": ["torchrun", "--nnodes", "2", "train.py"],
    "torchrun by its path": ["/opt/venv/bin/torchrun", "train.py"],
    "python -m": ["python3", "-u", "-m", "torch.distributed.run", "train.py"],
    "the old name": ["python", "-m", "torch.distributed.launch", "--use_env", "train.py"],
    "accelerate": ["accelerate", "launch", "train.py"],
    "accelerate's program for launch alone": ["/opt/venv/bin/accelerate-launch", "train.py"],
    "accelerate as a module": ["python3", "-m", "accelerate.commands.launch", "train.py"],
    "deepspeed": ["deepspeed", "--num_gpus", "8", "train.py"],
    "a shell": ["bash", "-c", "cd /app && exec torchrun --master_port=$MASTER_PORT train.py"],
    "a shell and a module": ["sh", "-c", "python -m torch.distributed.run train.py"],
    "a shell and accelerate as a module": ["sh", "-c", "cd a; python -m accelerate.commands.launch train.py"],
    "behind env": ["env", "A=1", "torchrun", "train.py"],
    "behind numactl": ["numactl", "--cpunodebind=0", "accelerate", "launch", "train.py"],
    "deepspeed in a shell": ["bash", "-c", "deepspeed --num_gpus 4 train.py"],
    "deepspeed after a command": ["bash", "-c", "pip install deepspeed && cd /app;A=1 exec deepspeed train.py"],
    "deepspeed in a loop": ["sh", "-c", "for i in 1 2; do\n  /opt/bin/deepspeed train.py\ndone"],
    "deepspeed behind options": ["numactl", "-N", "0", "-C", "0-3", "deepspeed", "train.py"],
    "deepspeed behind the image's entrypoint": ["/opt/nvidia/nvidia_entrypoint.sh", "deepspeed", "train.py"],
    "deepspeed in quotes": ["bash", "-c", "sh -c 'deepspeed train.py'"],
    "composer": ["composer", "-n", "4", "train.py"],
}
OTHERS = {
    "python": ["python3", "-u", "train.py", "--launcher", "torchrun"],
    "a module": ["python3.11", "-u", "-m", "train", "-m", "torch.distributed.run"],
    "a strategy of that name": ["python3", "train.py", "--strategy", "deepspeed"],
    "a shell": ["bash", "-c", "python train.py"],
    "a shell and a longer name": ["bash", "-c", "python my-torchrun-free.py --deepspeed_config=x"],
    "accelerate's other commands": ["bash", "-c", "accelerate env; python train.py"],
    "a missing script": ["bash", "/no/such/run.sh"],
    "python -m without a name": ["python3", "-m"],
    "a package of that name": ["bash", "-c", "pip install deepspeed && python train.py"],
    "a strategy of that name in a shell": ["sh", "-c", "python train.py --strategy deepspeed"],
    "a folder of that name": ["sh", "-c", "cd /opt/deepspeed && python train.py"],
    "a file of that name": ["bash", "-c", "cat deepspeed; exec python3 -m train composer"],
    "a look for a launcher": [
        "bash",
        "-c",
        "if ! command -v deepspeed; then env | grep deepspeed; fi; python train.py",
    ],
    "a continued line": ["bash", "-c", "pip install \\\n deepspeed\npython train.py"],
    "a strategy behind another program": ["/entrypoint.sh", "python3", "train.py", "--strategy", "deepspeed"],
}


@pytest.mark.parametrize("command", LAUNCHERS.values(), ids=LAUNCHERS)
def test_command_with_a_launcher_is_detected(command: list[str]) -> None:
    assert is_launcher(command)


@pytest.mark.parametrize("command", OTHERS.values(), ids=OTHERS)
def test_command_without_a_launcher_is_not_detected(command: list[str]) -> None:
    assert not is_launcher(command)


def test_launcher_in_a_shell_script_is_detected(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/bash\nset -e\ntorchrun \\\n  train.py\n")
    assert is_launcher(["bash", str(script)])
    assert is_launcher([str(script)])
    script.write_text("#!/bin/bash\n# once: torchrun train.py\npython train.py\n")
    assert not is_launcher(["bash", str(script)])
    script.write_bytes(b"\0 torchrun ")
    assert not is_launcher([str(script)])


INNER = """
import os, socket, sys
served = os.environ["TORCHELASTIC_USE_AGENT_STORE"]
sock = socket.socket(socket.AF_INET6)
sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
sock.bind(("::", int(os.environ["MASTER_PORT"])))
sock.listen()
print("served by the agent: " + served, flush=True)
"""


@pytest.mark.parametrize(
    ("name", "environ"),
    [("torchrun", {}), ("serves.py", {"TORCHELASTIC_USE_AGENT_STORE": "False"})],
    ids=["a launcher", "a script that sets it"],
)
def test_master_port_is_left_free_for_a_launcher_that_serves_it(
    tmp_path: Path, name: str, environ: dict[str, str]
) -> None:
    """As torchrun's static rendezvous does: on every address."""
    if not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("no IPv6 here")
    script = tmp_path / name
    script.write_text(f"#!{sys.executable}\n{INNER}")
    script.chmod(0o755)
    with running(tmp_path, 1, [str(script)], DTJ_MAX_RESTARTS="0", **environ) as group:
        assert group.wait_exit(0) == 0, group.logs()
        assert "served by the agent: False" in group.log(0)


def test_one_launcher_starts_all_ranks_of_its_pod_and_gets_its_place(tmp_path: Path) -> None:
    """Four ranks in the spec, and a launcher for each of them, would be sixteen."""
    script = tmp_path / "torchrun"
    names = ("NNODES", "NPROC_PER_NODE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
    script.write_text(
        f"#!{sys.executable}\nimport os\nprint('started', *(os.environ['PET_' + n] for n in {names}),"
        " os.environ['MASTER_PORT'], flush=True)\n"
    )
    script.chmod(0o755)
    with running(tmp_path, 2, ["sh", "-c", f"exec {script} t.py"], DTJ_PROCESSES_PER_POD="4") as group:
        assert [group.wait_exit(0), group.wait_exit(1)] == [0, 0], group.logs()
        for ordinal in (0, 1):
            (line,) = [line for line in group.log(ordinal).splitlines() if "] started " in line]
            *place, pet_port, port = line.partition("] started ")[2].split()
            assert place == ["2", "4", str(ordinal), "127.0.0.1"]
            assert pet_port == port


def test_script_that_is_no_launcher_gets_no_place(tmp_path: Path) -> None:
    """A torchrun that the script itself starts, such as for an evaluation, would take the variables for its own."""
    script = tmp_path / "t.py"
    script.write_text("import os\nprint('found', [n for n in os.environ if n.startswith('PET_')])\n")
    with running(tmp_path, 1, [sys.executable, str(script)]) as group:
        assert group.wait_exit(0) == 0
        assert "found []" in group.log(0)


REDUCE = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("sum %d" % total.item(), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.torch
def test_torchruns_of_all_pods_meet_on_master_port(tmp_path: Path) -> None:
    """The command that Kubeflow's users write."""
    script = tmp_path / "reduce.py"
    script.write_text(REDUCE)
    torchrun = (
        f"exec {sys.executable} -m torch.distributed.run --nnodes=$WORLD_SIZE --nproc-per-node=1 --node-rank=$RANK"
        f" --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT {script}"
    )
    environ = {"GLOO_SOCKET_IFNAME": "lo", "DTJ_MAX_RESTARTS": "0"}
    with running(tmp_path, 2, ["bash", "-c", torchrun], **environ) as group:
        assert [group.wait_exit(0, 240), group.wait_exit(1, 240)] == [0, 0], group.logs()
        assert [group.log(ordinal).count("sum 2") for ordinal in (0, 1)] == [1, 1]
