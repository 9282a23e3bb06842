"""A group of ranks on this machine, forked from one process that has imported torch; arms are interleaved inside it."""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from multiprocessing.queues import SimpleQueue
from typing import Any

from benchmarks.report import Rows as Rows

PRELOAD = ["accelerate", "lightning.pytorch"]  # if they are installed
_context = multiprocessing.get_context("forkserver")


def run(world: int, work: Callable[..., Any], *arguments: Any, timeout: float = 1800) -> Any:
    """Runs `work(*arguments)` on every rank with torchrun's environment. Returns rank 0's result."""
    # torch reads this when the fork server imports it: one thread per rank, as under the agent.
    os.environ["OMP_NUM_THREADS"] = "1"
    _context.set_forkserver_preload(["torch._dynamo", "dtj_trainer.cli", "benchmarks.trainer.group", *PRELOAD])
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    results: SimpleQueue[Any] = _context.SimpleQueue()
    processes = [_context.Process(target=_rank, args=(r, world, port, results, work, arguments)) for r in range(world)]
    for p in processes:
        p.start()
    deadline = time.monotonic() + timeout
    try:
        while results.empty():
            if time.monotonic() > deadline or any(p.exitcode not in (None, 0) for p in processes):
                raise RuntimeError(f"the group did not finish: exit codes {[p.exitcode for p in processes]}")
            time.sleep(0.05)
        return results.get()
    finally:
        for p in processes:
            p.join(5)
            if p.is_alive():
                p.kill()


def _rank(
    rank: int, world: int, port: int, results: SimpleQueue[Any], work: Callable[..., Any], arguments: Any
) -> None:
    own = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
    os.environ.update({k: str(v) for k, v in own.items()} | {"MASTER_ADDR": "127.0.0.1"})
    # The arms must spend the time of logging, but their output must not appear between the tables.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    result = work(*arguments)
    if rank == 0:
        results.put(result)
