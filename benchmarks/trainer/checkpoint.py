"""How long the training thread stands still for a checkpoint: ours beside torch.save, dcp.save, dcp.async_save and memcpy.

And what the writing in the background costs the steps beside it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.nn.parallel import DistributedDataParallel

from benchmarks.trainer.group import Rows
from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.checkpoint.contents import Contents, leaves
from dtj_trainer.checkpoint.retention import RetentionConfig
from dtj_trainer.checkpoint.store import CheckpointStore
from dtj_trainer.config import TrainerConfig
from dtj_trainer.trainer import Trainer


class Bench:
    """An MLP of 12.6 M parameters with AdamW (151 MB of state), and each way to save it."""

    def __init__(self, folder: Path) -> None:
        self.trainer = Trainer(TrainerConfig(steps=1))
        torch.manual_seed(0)
        layers = [nn.Linear(1774, 1774) for _ in range(4)]
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
        self.contents = Contents({"model": self.model, "optimizer": self.optimizer})
        self.gloo = dist.new_group(backend="gloo")
        self.step()
        self.buffers = [torch.empty_like(t) for t in self._tensors()]

    def _tensors(self) -> list[torch.Tensor]:
        return [leaf for _, leaf in leaves(self.contents.sharded()) if isinstance(leaf, torch.Tensor)]

    def step(self) -> float:
        """One training step; milliseconds."""
        started = time.perf_counter()
        self.model(torch.randn(32, 1774)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return (time.perf_counter() - started) * 1000

    def _path(self) -> Path:
        """A new folder; the one before goes, so that the disk is not filled."""
        if dist.get_rank() == 0:
            shutil.rmtree(self.folder / f"{self.number}", ignore_errors=True)
        self.number += 1
        return self.folder / f"{self.number}"

    def _tree(self) -> dict[str, Any]:
        return {"model": get_model_state_dict(self.model), "optimizer": get_optimizer_state_dict(self.model, self.optimizer)}

    # Each way begins the save and gives a function that waits for its end.

    def torch_save(self) -> Callable[[], object]:
        """On rank 0, synced to disk; the others wait."""
        path = self._path()
        if dist.get_rank() == 0:
            path.mkdir(parents=True)
            with (path / "all.pt").open("wb") as file:
                torch.save(self._tree(), file)
                os.fsync(file.fileno())
        dist.barrier()
        return lambda: None

    def dcp_save(self) -> Callable[[], object]:
        """Each rank writes a part."""
        dcp.save(self._tree(), checkpoint_id=self._path())
        return lambda: None

    def _async(self, kind: AsyncCheckpointerType) -> Callable[[], object]:
        future = dcp.async_save(self._tree(), checkpoint_id=self._path(), process_group=self.gloo, async_checkpointer_type=kind)
        assert isinstance(future, Future)
        return future.result

    def dcp_async_thread(self) -> Callable[[], object]:
        """With its defaults."""
        return self._async(AsyncCheckpointerType.THREAD)

    def dcp_async_process(self) -> Callable[[], object]:
        """With its defaults."""
        return self._async(AsyncCheckpointerType.PROCESS)

    def memcpy(self) -> Callable[[], object]:
        """The whole state into buffers that are there: what a save that stages everything can't beat."""
        for buffer, tensor in zip(self.buffers, self._tensors(), strict=True):
            buffer.copy_(tensor)
        return lambda: None

    def ours(self) -> Callable[[], object]:
        """Committed, with checksums."""
        self.number += 1
        self.store.save(self.number, self.contents, {})

        def wait() -> None:
            result = self.store.drain()
            assert result is not None
            assert result.outcome == "committed", result

        return wait


def measure(trials: int, volume: str | None) -> tuple[Rows, Rows]:
    """(stalls in ms by way of saving, milliseconds a step while nothing and while something is written)."""
    folder = Path(volume or tempfile.gettempdir(), "dtj-benchmark-checkpoint")
    bench = Bench(folder)
    ways = {
        "torch.save on rank 0, fsync, barrier": bench.torch_save,
        "dcp.save": bench.dcp_save,
        "dcp.async_save, thread": bench.dcp_async_thread,
        "dcp.async_save, process": bench.dcp_async_process,
        "memcpy of the whole state": bench.memcpy,
        "ours, asynchronous": bench.ours,
    }
    stalls: Rows = {name: [] for name in ways}
    steps: Rows = {"nothing is written": [], "ours is being written": [], "dcp.async_save, thread, is being written": []}
    names = list(ways)
    for trial in range(trials + 1):
        for name in names[trial % len(names) :] + names[: trial % len(names)]:
            bench.step()
            dist.barrier()
            started = time.perf_counter()
            wait = ways[name]()
            stall = (time.perf_counter() - started) * 1000
            beside = {"ours, asynchronous": 1, "dcp.async_save, thread": 2}.get(name, 0)
            took = [bench.step() for _ in range(3)]  # while it is written, if it is
            wait()
            dist.barrier()
            if trial:
                stalls[name].append(stall)
                if beside or name == "memcpy of the whole state":
                    steps[list(steps)[beside]] += took
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
    return stalls, steps
