"""What the ranks of test_rendezvous do; started by torchrun as a script, too."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from datetime import timedelta

import torch
from torch._C._distributed_c10d import PrefixStore, TCPStore

from dtj_trainer.cli import guarded
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.distributed.worker_env import WorkerEnv


def opened(times: int, seconds: float = 250.0) -> int:
    """Opens the group so many times, each rank tells its number to all; returns what an exit code is made of."""
    for _ in range(times):
        group = Group.open(WorkerEnv.read(), timeout=timedelta(seconds=seconds))
        assert group.gather(torch.tensor([group.rank])).flatten().tolist() == list(range(group.world_size))
        group.close()
    print(f"{times} times all here", flush=True)
    return 0


def start(changes: Mapping[int, Mapping[str, str]], times: int = 1, seconds: float = 250.0) -> None:
    """As a user's own launcher that gets variables wrong: `changes` by the rank that each process should have had."""
    os.environ.update(changes.get(int(os.environ["RANK"]), {}))
    raise SystemExit(guarded(lambda: opened(times, seconds)))


def frozen() -> None:
    """Rank 0 has a store, and stops as a frozen host does when rank 1 has signed there."""
    if os.environ["RANK"] == "1":
        raise SystemExit(guarded(lambda: opened(1, 1.0)))
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=True, wait_for_workers=False)
    call = PrefixStore("dtj/1/1", store)
    call.set("open", "1")
    call.wait(["word/1"], timedelta(seconds=60))
    os.kill(os.getpid(), signal.SIGSTOP)


def attempts(failing: int) -> int:
    """Rank 1 fails in so many attempts, each time when the group has met."""
    opened(2)
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    return 7 if attempt < failing and os.environ["RANK"] == "1" else 0


if __name__ == "__main__":
    sys.exit(attempts(int(sys.argv[1])))
