"""Stall of the training thread for a checkpoint: ours compared with torch.save, dcp.save, dcp.async_save and memcpy.

Also measures the cost of background writing for concurrent steps. A lower bound is the cost when another process writes
and hashes the same bytes, because the page cache, the disk and the CPU caches are shared in any case.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.nn.parallel import DistributedDataParallel

from benchmarks.trainer.group import Rows
from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.checkpoint.contents import CheckpointState, leaves
from dtj_trainer.checkpoint.retention import RetentionConfig
from dtj_trainer.checkpoint.store import CheckpointStore
from dtj_trainer.config import TrainerConfig
from dtj_trainer.trainer import Trainer

_SCRIBE = """
import hashlib, os, sys
os.nice(19)
content = memoryview(os.urandom(1 << 20) * int(sys.argv[2]))
print("ready", flush=True)
while sys.stdin.readline():
    with open(sys.argv[1], "wb") as file:
        for start in range(0, len(content), 12 << 20):
            part = content[start : start + (12 << 20)]
            hashlib.sha256(part)
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    print("written", flush=True)
"""


class Scribe:
    """A process of the lowest priority that writes, hashes and syncs as many bytes as one rank's share on request."""

    def __init__(self, path: Path, mebibytes: int) -> None:
        command = [sys.executable, "-c", _SCRIBE, str(path), str(mebibytes)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.wait()

    def begin(self) -> None:
        """Starts one write and returns at once."""
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def busy(self) -> bool:
        """Returns whether the write is still in progress."""
        assert self._process.stdout
        return not select.select([self._process.stdout], [], [], 0)[0]

    def wait(self) -> None:
        """Waits until the write is complete."""
        assert self._process.stdout
        assert self._process.stdout.readline(), "the scribe has ended"

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate(timeout=60)


class CheckpointBench:
    """An MLP of 12.6 M parameters with AdamW (151 MB of state), and each way to save it."""

    def __init__(self, folder: Path, width: int = 1774) -> None:
        self.width = width
        self.trainer = Trainer(TrainerConfig(steps=1))
        torch.manual_seed(0)
        layers = [nn.Linear(width, width) for _ in range(4)]
        self.model = DistributedDataParallel(nn.Sequential(*layers))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.folder = folder
        self.number = 0
        self.store = CheckpointStore(
            folder / "ours",
            self.trainer.group,
            CheckpointConfig(retention=RetentionConfig(keep_last=1)),
            attempt=None,
            notify=lambda *_: None,
        )
        self.contents = CheckpointState({"model": self.model, "optimizer": self.optimizer})
        self.gloo = dist.new_group(backend="gloo")
        options = StagingOptions(
            use_pinned_memory=False, use_shared_memory=True, use_async_staging=False, use_non_blocking_copy=False
        )
        self.stager = DefaultStager(options)
        self.step()
        self.buffers = [torch.empty_like(t) for t in self._tensors()]

    def _tensors(self) -> list[torch.Tensor]:
        return [leaf for _, leaf in leaves(self.contents.sharded()) if isinstance(leaf, torch.Tensor)]

    def step(self) -> float:
        """Runs one training step and returns its milliseconds."""
        started = time.perf_counter()
        self.model(torch.randn(32, self.width)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return (time.perf_counter() - started) * 1000

    def _path(self) -> Path:
        """Returns a new folder and deletes the previous one, so that the disk does not fill up."""
        if dist.get_rank() == 0:
            shutil.rmtree(self.folder / f"{self.number}", ignore_errors=True)
        self.number += 1
        return self.folder / f"{self.number}"

    def _tree(self) -> dict[str, Any]:
        return {
            "model": get_model_state_dict(self.model),
            "optimizer": get_optimizer_state_dict(self.model, self.optimizer),
        }

    # Each of the following methods begins a save and returns a function that waits for its end.

    def torch_save(self) -> Callable[[], object]:
        """Saves on rank 0 and syncs to disk while the other ranks wait."""
        path = self._path()
        if dist.get_rank() == 0:
            path.mkdir(parents=True)
            with (path / "all.pt").open("wb") as file:
                torch.save(self._tree(), file)
                os.fsync(file.fileno())
        dist.barrier()
        return lambda: None

    def dcp_save(self) -> Callable[[], object]:
        """Saves with dcp.save; each rank writes its share."""
        dcp.save(self._tree(), checkpoint_id=self._path())
        return lambda: None

    def async_save(self, kind: AsyncCheckpointerType) -> Future[Any]:
        """Begins a dcp.async_save."""
        future = dcp.async_save(
            self._tree(), checkpoint_id=self._path(), process_group=self.gloo, async_checkpointer_type=kind
        )
        assert isinstance(future, Future)
        return future

    def dcp_async_thread(self) -> Callable[[], object]:
        """Saves in a thread with the defaults."""
        return self.async_save(AsyncCheckpointerType.THREAD).result

    def dcp_async_process(self) -> Callable[[], object]:
        """Saves in a process with the defaults."""
        return self.async_save(AsyncCheckpointerType.PROCESS).result

    def dcp_async_tuned(self) -> Callable[[], object]:
        """Saves as an expert would: in a process, with a stager that keeps its shared memory between saves."""
        future = dcp.async_save(
            self._tree(),
            checkpoint_id=self._path(),
            process_group=self.gloo,
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
            async_stager=self.stager,
        )
        if isinstance(future, Future):
            return future.result
        staged = future.staging_completion
        # The training must not change the state while it is being staged.
        staged.result()
        return future.upload_completion.result

    def memcpy(self) -> Callable[[], object]:
        """Copies the whole state into existing buffers: the lower bound of a save that stages everything."""
        for buffer, tensor in zip(self.buffers, self._tensors(), strict=True):
            buffer.copy_(tensor)
        return lambda: None

    def ours(self) -> Callable[[], object]:
        """Saves with our store: committed, with checksums."""
        self.number += 1
        self.store.save(self.number, self.contents, {})

        def wait() -> None:
            result = self.store.drain()
            assert result is not None
            assert result.outcome == "committed", result

        return wait


BEST_DCP = "dcp.async_save, process, stager kept"
NOTHING, OURS, DCP, SCRIBE = (
    "nothing is written",
    "ours is being written",
    "dcp.async_save, thread",
    "as much by another process",
)


@contextlib.contextmanager
def _bench(volume: str | None) -> Iterator[CheckpointBench]:
    folder = Path(volume or tempfile.gettempdir(), "dtj-benchmark-checkpoint")
    yield CheckpointBench(folder)
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)


def measure(trials: int, volume: str | None) -> tuple[Rows, Rows]:
    """Returns the stalls in ms by method, and the mean milliseconds of steps with and without a concurrent write."""
    with _bench(volume) as bench:
        return _stalls(bench, trials), _beside(bench, trials)


def _turning(names: list[str], trials: int) -> Iterator[tuple[int, str]]:
    """Yields (trial, arm) in a rotating order; trial 0 only warms up."""
    for trial in range(trials + 1):
        first = trial % len(names)
        yield from ((trial, name) for name in names[first:] + names[:first])


def _stalls(bench: CheckpointBench, trials: int) -> Rows:
    ways = {
        "torch.save on rank 0, fsync, barrier": bench.torch_save,
        "dcp.save": bench.dcp_save,
        "dcp.async_save, thread": bench.dcp_async_thread,
        "dcp.async_save, process": bench.dcp_async_process,
        BEST_DCP: bench.dcp_async_tuned,
        "memcpy of the whole state": bench.memcpy,
        "ours, asynchronous": bench.ours,
    }
    rows: Rows = {name: [] for name in ways}
    for trial, name in _turning(list(ways), trials):
        bench.step()
        dist.barrier()
        started = time.perf_counter()
        wait = ways[name]()
        stall = (time.perf_counter() - started) * 1000
        wait()
        dist.barrier()
        if trial:
            rows[name].append(stall)
    return rows


def _beside(bench: CheckpointBench, trials: int) -> Rows:
    """Measures the mean step from the hand-over until all ranks have written, and of as many steps without a write."""
    gather, usual = bench.trainer.group.gather, 8
    mebibytes = sum(t.nbytes for t in bench.buffers) // dist.get_world_size() >> 20
    scribe = Scribe(bench.folder / f"scribe-{dist.get_rank()}", mebibytes)
    rows: Rows = {name: [] for name in (NOTHING, OURS, DCP, SCRIBE)}
    for trial, name in _turning(list(rows), trials):
        bench.step()
        dist.barrier()
        took: list[float] = []
        if name == NOTHING:
            took = [bench.step() for _ in range(usual)]
        elif name == SCRIBE:
            scribe.begin()
            while gather(torch.tensor([float(scribe.busy())])).any():
                took.append(bench.step())
            scribe.wait()
        elif name == OURS:
            wait = bench.ours()
            while gather(torch.tensor([float(bench.store.busy)])).any():
                took.append(bench.step())
            wait()
            usual = len(took)
        else:
            future = bench.async_save(AsyncCheckpointerType.THREAD)
            while gather(torch.tensor([float(not future.done())])).any():
                took.append(bench.step())
            future.result()
        dist.barrier()
        if trial:
            rows[name].append(statistics.mean(took))
    scribe.close()
    return rows
