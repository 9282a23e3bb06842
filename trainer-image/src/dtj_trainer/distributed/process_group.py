"""The process groups of one worker: one for the gradients, one for control, one for checkpoints.

Control and checkpoints have separate gloo groups, because a background thread that shares a group
with the training thread would interleave its collectives differently on each rank.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from dtj_contract import stack_dump
from dtj_trainer.distributed import exit_rest, rendezvous
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.errors import ConfigError

DEFAULT_TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """This worker's rank, device and process groups."""

    rank: int
    world_size: int
    local_world_size: int
    device: torch.device
    backend: str
    control: dist.ProcessGroup
    checkpoint: dist.ProcessGroup
    owns_default: bool
    """Whether `open` made the default group, so that `close` destroys it."""
    local_rank: int = 0
    timeout: timedelta = DEFAULT_TIMEOUT

    @classmethod
    def open(cls, env: WorkerEnv, *, timeout: timedelta = DEFAULT_TIMEOUT) -> Group:
        """Joins the world (or takes the default group that the caller's script has made already).

        Raises RankMismatch if a worker was started with another WORLD_SIZE or with another worker's
        RANK, RendezvousFailed if a worker does not come within `timeout`.
        """
        exit_rest.await_rest_at_exit()
        if env.stack_file is not None:  # before the first wait for other ranks
            stack_dump.register(str(env.stack_file))
        cuda = torch.cuda.is_available()
        backend = env.backend if env.backend != "auto" else ("nccl" if cuda else "gloo")
        if backend == "nccl" and not cuda:
            raise ConfigError(
                "backend=nccl needs a CUDA device and this worker sees none: write backend: gloo (or auto)"
            )
        device = torch.device("cuda", env.local_rank % torch.cuda.device_count()) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(device)
        owns = not dist.is_initialized()
        if owns:
            if backend == "nccl":
                record_flights(env)
            # With a GPU the default group carries both, so that CPU tensors can be reduced too.
            spelled = "cpu:gloo,cuda:nccl" if backend == "nccl" else "gloo"
            if env.launched:
                store = rendezvous.join(env.rank, env.world_size, timeout)
                dist.init_process_group(spelled, store=store, rank=env.rank, world_size=env.world_size, timeout=timeout)
            else:
                dist.init_process_group(spelled, store=HashStore(), rank=0, world_size=1, timeout=timeout)
        group = cls(
            rank=dist.get_rank(),
            world_size=dist.get_world_size(),
            local_rank=env.local_rank,
            local_world_size=env.local_world_size,
            device=device,
            backend=backend,
            control=_gloo(timeout),
            checkpoint=_gloo(timeout),
            owns_default=owns,
            timeout=timeout,
        )
        if backend == "nccl":
            uuid = str(torch.cuda.get_device_properties(device).uuid)
            check_one_device_each(group.all_objects((socket.gethostname(), uuid)))
        return group

    def gather(self, row: torch.Tensor) -> torch.Tensor:
        """Returns the CPU `row` of every rank, in rank order: shape (world_size, *row.shape)."""
        if self.world_size == 1:
            return row.unsqueeze(0)
        rows = [torch.empty_like(row) for _ in range(self.world_size)]
        dist.all_gather(rows, row, group=self.control)
        return torch.stack(rows)

    def all_objects(self, value: Any) -> list[Any]:
        """Returns the `value` of every rank, in rank order.

        Values are pickled: for small objects at the start, not for the hot loop.
        """
        if self.world_size == 1:
            return [value]
        out: list[Any] = [None] * self.world_size
        dist.all_gather_object(out, value, group=self.control)
        return out

    def from_first(self, value: Any) -> Any:
        """Returns rank 0's `value` on every rank."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def close(self) -> None:
        """Destroys the groups that `open` made."""
        if self.owns_default and dist.is_initialized():
            dist.destroy_process_group()


@dataclass(frozen=True, kw_only=True, slots=True)
class FakeGroup(Group):
    """A group in which nothing is sent: every other rank seems to have this rank's values."""

    @classmethod
    def of(cls, group: Group) -> FakeGroup:
        """Returns the same place in the same world, in a group that sends nothing."""
        return cls(**{field.name: getattr(group, field.name) for field in fields(group)})

    def gather(self, row: torch.Tensor) -> torch.Tensor:
        """Returns this rank's row for each rank."""
        return torch.stack([row] * self.world_size)

    def all_objects(self, value: Any) -> list[Any]:
        """Returns `value` for each rank."""
        return [value] * self.world_size

    def from_first(self, value: Any) -> Any:
        """Returns `value`."""
        return value


def _gloo(timeout: timedelta) -> dist.ProcessGroup:
    group = dist.new_group(backend="gloo", timeout=timeout)
    # torch returns a marker object to ranks outside of the group; all ranks are inside.
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError("new_group over all ranks returned no group")
    return group


def new_gloo_group(group: Group) -> dist.ProcessGroup:
    """Returns one more gloo group over all ranks, for a thread of its own; a collective."""
    return _gloo(group.timeout)


def check_one_device_each(places: Sequence[tuple[str, str]]) -> None:
    """Raises ConfigError if two ranks have one GPU. NCCL would name neither of them later.

    `places`: host and device UUID of each rank.
    """
    ranks: dict[tuple[str, str], list[int]] = {}
    for rank, place in enumerate(places):
        ranks.setdefault(place, []).append(rank)
    for (host, _), shared in ranks.items():
        if len(shared) > 1:
            raise ConfigError(
                f"ranks {', '.join(map(str, shared))} have one GPU of {host}: write processesPerPod "
                "(torchrun: --nproc-per-node) no greater than the GPUs that a pod sees, or backend: gloo"
            )


FLIGHT_RECORDS = 2000
"""Collectives that NCCL's flight recorder keeps for each rank, some 200 bytes each."""


def record_flights(env: WorkerEnv) -> None:
    """Makes torch record the last collectives of each rank, and write them to a file when one times out.

    The files show which rank was in which collective. The files lie beside the checkpoints, where
    they outlive the pod. Variables that are set already stay. torch reads these variables when the group
    is made.
    """
    folder = (env.checkpoint_dir or Path(tempfile.gettempdir())) / "flight-records"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # the first checkpoint reports it
        return
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(FLIGHT_RECORDS))
    os.environ.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", os.environ["TORCH_FR_BUFFER_SIZE"])  # the older name
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
        os.environ.setdefault(name, str(folder / f"attempt-{env.attempt or 0}-rank-"))  # torch appends the rank
