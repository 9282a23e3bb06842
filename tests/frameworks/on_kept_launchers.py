"""Launchers that stay in the command, with their real packages: two pods of two ranks are one training.

One stays because of its configuration file, the others because their path names the interpreter.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from dtj_core.api.launcher import unwrap
from dtj_core.api.launcher_place import placed
from tests.unit.agent.harness import running

PODS, RANKS = 2, 2
SCRIPT = """
import torch, torch.distributed as dist
if not dist.is_initialized():
    {begin}
total = torch.tensor([float(dist.get_rank())])
dist.all_reduce(total)
print("ranks", dist.get_world_size(), "sum", int(total), flush=True)
dist.destroy_process_group()
"""
CONFIG = "distributed_type: MULTI_GPU\nmachine_rank: 0\nnum_machines: 2\nnum_processes: 4\n"
"""Its launcher starts the ranks by torchrun; the script chooses processors."""
LAUNCHERS = {
    "accelerate": (
        [sys.executable, "-m", "accelerate.commands.launch", "--config_file", "{folder}/config.yaml"],
        "from accelerate import Accelerator; Accelerator(cpu=True)",
    ),
    "composer": (
        [str(Path(sys.executable).with_name("composer"))],
        "from composer.utils import dist as own; own.initialize_dist('cpu')",
    ),
    "deepspeed": (
        [str(Path(sys.executable).with_name("deepspeed"))],
        "import deepspeed; deepspeed.init_distributed('gloo')",
    ),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", LAUNCHERS)
def test_launcher_that_stays_starts_one_training_on_all_pods(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed: hack/frameworks.sh or hack/composer.sh installs it")
    launcher, begin = LAUNCHERS[name]
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(begin=begin))
    (tmp_path / "config.yaml").write_text(CONFIG)
    command = [*(part.format(folder=tmp_path) for part in launcher), str(script)]
    assert unwrap(command, PODS) is None
    environ = {"DTJ_PROCESSES_PER_POD": str(RANKS), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with running(tmp_path, PODS, placed(command, PODS), **environ) as group:
        assert [group.wait_exit(pod, 300) for pod in range(PODS)] == [0] * PODS, group.logs()
        shown = 1 if name == "composer" else RANKS  # Composer shows the output of one rank of each node
        assert group.logs().count("ranks 4 sum 6") == PODS * shown, group.logs()
