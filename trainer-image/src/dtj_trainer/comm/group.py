"""The process groups of one worker: one for the gradients, one for control, one for checkpoints.

Control and checkpoints have gloo groups of their own, because a background thread that shares a group with the
training thread would interleave its collectives differently on each rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import HashStore

from dtj_trainer.comm import rollcall
from dtj_trainer.env import WorkerEnv
from dtj_trainer.errors import ConfigError

DEFAULT_TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Where this worker stands, and its groups."""

    rank: int
    world_size: int
    local_world_size: int
    device: torch.device
    backend: str
    control: dist.ProcessGroup
    checkpoint: dist.ProcessGroup
    owns_default: bool
    """We made the default group, so `close` destroys it."""

    @classmethod
    def open(cls, env: WorkerEnv, *, timeout: timedelta = DEFAULT_TIMEOUT) -> Group:
        """Joins the world (or takes the default group that the caller's script has made already).

        Raises RankMismatch if a worker was started with another WORLD_SIZE or with a RANK that another one has,
        RendezvousFailed if one does not come within `timeout`.
        """
        cuda = torch.cuda.is_available()
        backend = env.backend if env.backend != "auto" else ("nccl" if cuda else "gloo")
        if backend == "nccl" and not cuda:
            raise ConfigError("backend=nccl needs a CUDA device and this worker sees none: write backend: gloo (or auto)")
        device = torch.device("cuda", env.local_rank % torch.cuda.device_count()) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(device)
        owns = not dist.is_initialized()
        if owns:
            # With a GPU the default group carries both, so that CPU tensors can be reduced too.
            spelled = "cpu:gloo,cuda:nccl" if backend == "nccl" else "gloo"
            if env.launched:
                store = rollcall.meet(env.rank, env.world_size, timeout)
                dist.init_process_group(spelled, store=store, rank=env.rank, world_size=env.world_size, timeout=timeout)
            else:
                dist.init_process_group(spelled, store=HashStore(), rank=0, world_size=1, timeout=timeout)
        return cls(
            rank=dist.get_rank(),
            world_size=dist.get_world_size(),
            local_world_size=env.local_world_size,
            device=device,
            backend=backend,
            control=_gloo(timeout),
            checkpoint=_gloo(timeout),
            owns_default=owns,
        )

    def gather(self, row: torch.Tensor) -> torch.Tensor:
        """One CPU row per rank, in rank order: shape (world_size, *row.shape)."""
        if self.world_size == 1:
            return row.unsqueeze(0)
        rows = [torch.empty_like(row) for _ in range(self.world_size)]
        dist.all_gather(rows, row, group=self.control)
        return torch.stack(rows)

    def all_objects(self, value: Any) -> list[Any]:
        """`value` of every rank, in rank order (pickled: for small things at the start, not for the hot loop)."""
        if self.world_size == 1:
            return [value]
        out: list[Any] = [None] * self.world_size
        dist.all_gather_object(out, value, group=self.control)
        return out

    def from_first(self, value: Any) -> Any:
        """Rank 0's `value` on every rank."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def close(self) -> None:
        """Ends the groups that `open` made."""
        if self.owns_default and dist.is_initialized():
            dist.destroy_process_group()


def _gloo(timeout: timedelta) -> dist.ProcessGroup:
    group = dist.new_group(backend="gloo", timeout=timeout)
    if not isinstance(group, dist.ProcessGroup):  # torch gives a marker object to ranks outside; all ranks are inside
        raise TypeError("new_group over all ranks gave no group")
    return group
