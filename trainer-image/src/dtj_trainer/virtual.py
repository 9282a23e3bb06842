"""Virtual ranks: the ranks of one group as threads of one process, for a debugger.

    python -m dtj_trainer.virtual --ranks 4 --config train.yaml [--field value …]

Each rank has its own model, group and strategy, and real gloo collectives over loopback. A `breakpoint()` in the
model, the loss or the library stops that rank, and the others wait in their next collective. Random numbers are
those of the process, so that dropout draws in the order in which the threads come; the initial weights are alike.
"""

from __future__ import annotations

import argparse
import copy
import logging
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from dtj_trainer.cli import guarded, make_task
from dtj_trainer.config import TrainerConfig
from dtj_trainer.config_parser import build, override, read_yaml
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.errors import ConfigError, TrainerError
from dtj_trainer.task import Task
from dtj_trainer.telemetry.sinks import TelemetryConfig
from dtj_trainer.torch_private import thread_worlds
from dtj_trainer.trainer import Result, Trainer

T = TypeVar("T")
PATIENCE = 86400.0
"""Seconds that a rank waits for one that is in a debugger."""
MOST_RANKS = 256
FORM_SECONDS = 10.0
"""Time that the other ranks have to join the group, once one has failed."""


class RankFailed(TrainerError):
    """A virtual rank raised an error, which is the cause of this one."""


def run_ranks(ranks: int, work: Callable[[WorkerEnv], T]) -> list[T]:
    """Calls `work` on each rank, in a thread with a default group of its own. Returns the results by rank.

    Raises RankFailed once a rank has failed and the others have joined the group, or FORM_SECONDS after. The others
    then still wait for it in their threads: end the process.
    """
    if not 1 <= ranks <= MOST_RANKS:
        raise ConfigError(f"--ranks {ranks}: write a number from 1 to {MOST_RANKS}")
    store, ended = HashStore(), queue.SimpleQueue[tuple[int, T | None, BaseException | None]]()
    joined = threading.Semaphore(0)

    def rank_main(rank: int) -> None:
        env = WorkerEnv(
            rank=rank, world_size=ranks, local_rank=rank, local_world_size=ranks, backend="gloo"
        )  # without an agent and without a checkpoint folder
        try:
            # On a GPU a backward would otherwise call its hooks in a thread that belongs to no rank.
            with torch.autograd.set_multithreading_enabled(False):
                wait = timedelta(seconds=PATIENCE)
                try:
                    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=wait)
                finally:
                    joined.release()
                result = work(env)
                dist.destroy_process_group()
        except BaseException as error:  # noqa: BLE001 - raised by the caller's thread
            ended.put((rank, None, error))
        else:
            ended.put((rank, result, None))

    results: dict[int, T] = {}
    with thread_worlds():
        for rank in range(ranks):
            threading.Thread(target=rank_main, args=(rank,), name=f"rank {rank}", daemon=True).start()
        while len(results) < ranks:
            rank, result, error = ended.get()
            if error is not None:
                # A rank that joins later would make its group the default group of the process.
                ends = time.monotonic() + FORM_SECONDS
                for _ in range(ranks):
                    joined.acquire(timeout=max(0.0, ends - time.monotonic()))
                raise RankFailed(f"rank {rank}: {type(error).__name__}: {error}") from error
            results[rank] = result  # type: ignore[assignment]
    return [results[rank] for rank in range(ranks)]


def fit(task: Task, config: TrainerConfig, ranks: int) -> list[Result]:
    """Trains a task on virtual ranks. Nothing is saved, and samples are read in the ranks' own threads.

    Raises RankFailed, ConfigError.
    """
    models = [copy.deepcopy(task.model) for _ in range(ranks)]
    patient = replace(
        config,
        data=replace(config.data, workers=0),
        telemetry=TelemetryConfig(),
        state=replace(config.state, collective_timeout_seconds=PATIENCE),
    )

    def one(env: WorkerEnv) -> Result:
        with Trainer(copy.deepcopy(patient), env) as trainer:
            return trainer.fit(**replace(task, model=models[env.rank]).arguments())

    return run_ranks(ranks, one)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line. Exit codes: 0 done, 93 a wrong field or flag, 1 a rank failed."""
    parser = argparse.ArgumentParser(
        prog="python -m dtj_trainer.virtual",
        allow_abbrev=False,
        description="Run the ranks of a train.yaml as threads of this process, for a debugger. --field value "
        "overrides the file, as with dtj-train.",
    )
    parser.add_argument("--ranks", type=int, required=True, metavar="N")
    parser.add_argument("--config", type=Path, required=True, metavar="train.yaml")
    flags, fields = parser.parse_known_args(argv)
    # The first call decides the format: threads, and not processes, are ranks here.
    logging.basicConfig(level=logging.INFO, format="%(threadName)s %(levelname)s %(name)s: %(message)s")
    return guarded(lambda: _train(flags.config, fields, flags.ranks))


def _train(config_file: Path, fields: Sequence[str], ranks: int) -> int:
    tree = read_yaml(config_file)
    override(tree, fields)
    spelled, arguments = tree.pop("task", None), tree.pop("arguments", {})
    config = build(TrainerConfig, tree)
    torch.manual_seed(config.seed)
    task = make_task(spelled, arguments)
    try:
        results = fit(task, config, ranks)
    except RankFailed as failed:
        cause = failed.__cause__
        if isinstance(cause, ConfigError):
            raise cause from None
        traceback.print_exception(cause)
        sys.stderr.write(f"{failed}\n")
        return 1
    sys.stdout.write(f"final step={results[0].step} loss={results[0].loss!r}\n")
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of ranks that wait for one that has failed would keep the interpreter from its end.
    os._exit(code)
