"""Functions for the ranks of tests of killed saves and failing volumes, importable by the forked processes."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from dtj_trainer.checkpoint import store as store_module
from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.checkpoint.contents import CheckpointState
from dtj_trainer.checkpoint.retention import RetentionConfig
from dtj_trainer.checkpoint.store import CheckpointStore
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.errors import CheckpointError
from dtj_trainer.state import State, StateConfig

FILE_OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir", "os.listdir"}


class Counted:
    """A model with Adam in which every number encodes its step, so that a mixture of two checkpoints would show."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 64), torch.nn.Linear(64, 8))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        for p in self.model.parameters():
            p.grad = torch.zeros_like(p)
        self.optimizer.step()
        self.step = 0
        self.contents = CheckpointState({"model": self.model, "optimizer": self.optimizer, "counted": self})

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]

    def _numbers(self) -> Iterator[torch.Tensor]:
        for p in self.model.parameters():
            yield from (p.detach(), self.optimizer.state[p]["exp_avg"], self.optimizer.state[p]["exp_avg_sq"])

    def set(self, step: int, rank: int) -> None:
        """Sets every number to its value at `step`."""
        self.step = step
        for number, tensor in enumerate(self._numbers()):
            torch.arange(tensor.numel(), out=tensor.view(-1)).add_(1000 * step + number)
        torch.manual_seed(1000 * step + rank)

    def check(self, step: int, rank: int) -> None:
        """Raises AssertionError if a number is not of `step`."""
        assert self.step == step
        for number, tensor in enumerate(self._numbers()):
            wanted = torch.arange(tensor.numel(), dtype=tensor.dtype).add_(1000 * step + number)
            assert torch.equal(tensor.view(-1), wanted), f"tensor {number} is not of step {step}"
        assert torch.equal(torch.get_rng_state(), torch.Generator().manual_seed(1000 * step + rank).get_state())


def counted_saves(directory: str, socket_path: str, at: int | None) -> None:
    """Loads and checks the newest checkpoint, then saves the next step. Rank 0 reports each stage.

    `at`: both are killed when rank 0's writer is about to do its file operation of this number;
    None: the test kills them.
    """
    group = Group.open(WorkerEnv.read(), timeout=timedelta(seconds=250))
    config = CheckpointConfig(retries=0, retention=RetentionConfig(keep_last=1))
    events: list[str] = []
    store = CheckpointStore(
        Path(directory), group, config, attempt=None, notify=lambda *event: events.append(str(event))
    )
    counted = Counted()
    found = store.load(counted.contents)
    if found:
        counted.check(found.step, group.rank)
    step = found.step + 1 if found else 1
    counted.set(step, group.rank)
    pids = group.all_objects(os.getpid())
    operations = 0

    def hook(event: str, _: Any) -> None:
        nonlocal operations
        if event in FILE_OPERATIONS and threading.current_thread().name == "dtj-checkpoint":
            if operations == at:
                for pid in reversed(pids):  # the other first, then this one
                    os.kill(pid, signal.SIGKILL)
            operations += 1

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as tell:
        if group.rank == 0:
            sys.addaudithook(hook)
            tell.connect(socket_path)
            tell.send(json.dumps({"loaded": found.step if found else 0, "events": events}).encode())
        started = time.perf_counter()
        store.save(step, counted.contents, {})
        result = store.drain()
        assert result is not None
        assert result.outcome == "committed", result
        if group.rank == 0:
            seconds = time.perf_counter() - started
            tell.send(json.dumps({"committed": step, "seconds": seconds, "operations": operations}).encode())
        signal.pause()


def _training(directory: Path, checkpoint: CheckpointConfig, steps: int) -> Iterator[tuple[State, int]]:
    """Runs a small model in a user's own loop; 12.6 MB of state, and long lines in metrics.jsonl."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
    optimizer = torch.optim.Adam(model.parameters())
    checkpoint.directory = directory
    state = State(StateConfig(log_every_steps=1, checkpoint=checkpoint), model=model, optimizer=optimizer)
    for step in state.steps(steps):
        loss = model(torch.randn(8, 512)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state.report(loss=loss, samples=8, **dict.fromkeys(map("metric{}".format, range(30)), 0.1))
        yield state, step
    state.close()


def on_a_volume_that_fills(volume: str, max_failures: int, left: int, freed_at: int) -> None:
    """Trains 40 steps, a checkpoint every 10; from step 12 on the volume has `left` bytes, from
    step `freed_at` on all its room."""
    ballast = Path(volume, "ballast")
    config = CheckpointConfig(
        every_steps=10, retries=1, retry_seconds=0.01, asynchronous=False, max_failures=max_failures
    )
    for state, step in _training(Path(volume, "checkpoints"), config, 40):
        if state.group.rank == 0:
            if step == 12:
                with ballast.open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(volume).free - left)
            if step == freed_at:
                ballast.unlink()


def on_a_volume_that_hangs(volume: str, out: str, timeout: float) -> None:
    """Trains without end, a checkpoint every 5 steps; a byte for each step into a file that is on no bad volume."""
    with Path(f"{out}-{os.environ['RANK']}").open("w") as steps:
        for _ in _training(
            Path(volume, "checkpoints"), CheckpointConfig(every_steps=5, timeout_seconds=timeout), 100_000
        ):
            steps.write(".")
            steps.flush()


def unreadable_on_one_rank(directory: str, broken: int, what: str) -> None:
    """Saves, and loads while one rank can't read; all ranks meet afterwards."""
    group, counted = Group.open(WorkerEnv.read()), Counted()
    store = CheckpointStore(Path(directory), group, CheckpointConfig(), attempt=None, notify=lambda *_: None)
    counted.set(3, group.rank)
    store.save(3, counted.contents, {})
    store.drain()

    def fails(*_: Any) -> Any:
        raise OSError(errno.EIO, "Input/output error", what)

    if group.rank == broken:
        setattr(store_module if what == "_load_file" else store_module.folder, what, fails)
    try:
        store.load(counted.contents)
    except CheckpointError as e:
        print("not loaded:", e)
    assert group.all_objects(f"rank {group.rank}") == ["rank 0", "rank 1"]
    print("together")
