"""Functions for the ranks of test_rendezvous; torchrun starts this file as a script, too."""

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
    """Opens the group `times` times; each time all ranks exchange their numbers.

    Returns an exit code.
    """
    for _ in range(times):
        group = Group.open(WorkerEnv.read(), timeout=timedelta(seconds=seconds))
        assert group.gather(torch.tensor([group.rank])).flatten().tolist() == list(range(group.world_size))
        group.close()
    print(f"{times} times all here", flush=True)
    return 0


def start(changes: Mapping[int, Mapping[str, str]], times: int = 1, seconds: float = 250.0) -> None:
    """Starts a rank as a user's launcher that sets wrong variables: `changes` by the rank that each
    process should have had."""
    os.environ.update(changes.get(int(os.environ["RANK"]), {}))
    raise SystemExit(guarded(lambda: opened(times, seconds)))


def frozen() -> None:
    """Opens a store on rank 0, which stops as a frozen host does when rank 1 has registered."""
    if os.environ["RANK"] == "1":
        raise SystemExit(guarded(lambda: opened(1, 1.0)))
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=True, wait_for_workers=False)
    round_store = PrefixStore("dtj/1/1", store)
    round_store.set("open", "1")
    round_store.wait(["word/1"], timedelta(seconds=60))
    os.kill(os.getpid(), signal.SIGSTOP)


def attempts(failing: int) -> int:
    """Makes rank 1 fail in `failing` attempts, each time after the rendezvous."""
    opened(2)
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    return 7 if attempt < failing and os.environ["RANK"] == "1" else 0


if __name__ == "__main__":
    sys.exit(attempts(int(sys.argv[1])))
