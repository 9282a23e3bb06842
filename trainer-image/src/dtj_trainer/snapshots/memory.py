"""Takes memory snapshots of a run, beside its checkpoints, and brings the newest one back after a restart.

The training thread copies this rank's state into one of two files in shared memory. A thread beside
it computes the digests, makes the file valid, sends the partner its copy, and learns that all ranks
have done so. The next snapshot waits for that, so that one step is whole on every rank at any instant.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from dtj_contract import names
from dtj_trainer.checkpoint.background_task import BackgroundTask
from dtj_trainer.distributed.process_group import Group, new_gloo_group
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.errors import SnapshotError
from dtj_trainer.snapshots import partner, room
from dtj_trainer.snapshots.choice import Choice, Volume
from dtj_trainer.snapshots.contents import LiveState, read_blob
from dtj_trainer.snapshots.image import Image, fill, keys_of
from dtj_trainer.snapshots.interval import Interval
from dtj_trainer.snapshots.place import Place, snapshot_directory
from dtj_trainer.snapshots.restore import Restore
from dtj_trainer.snapshots.slot import HEADER_BYTES, Header, Slot, digest

log = logging.getLogger(__name__)
Notify = Callable[[Literal["Normal", "Warning"], str, str], None]
Every = int | Literal["auto"]
WRITER_NICE = 5
"""The next snapshot waits for the thread, so it yields to the training only a little."""
OFF = "memory snapshots are off, and a restart resumes from the newest checkpoint: "
_states = itertools.count(1)


@dataclass(frozen=True, slots=True)
class _Done:
    """The thread's result of one snapshot."""

    problem: str
    """Why some rank has failed; "" if none has."""
    cpu_seconds: float


class MemorySnapshots:
    """One rank's snapshots. All ranks call its methods at the same steps; without a job all are no-ops."""

    def __init__(
        self,
        env: WorkerEnv,
        group: Group,
        parts: Mapping[str, object],
        every: Every,
        notify: Notify,
        checkpoints: Path | None = None,
    ) -> None:
        """Takes the steps between two snapshots as `every`: auto follows the cost, 0 takes none.

        `checkpoints`: the folder of this State's checkpoints. A snapshot belongs to a State with the
        same folder, since the number of a State changes where a restart skips what is done.
        """
        if every == "auto" and group.device.type == "cuda":
            every = 0  # never measured on a GPU
        self._group, self._notify = group, notify
        self._live = LiveState(parts)
        self._interval = Interval(None if every == "auto" else every or None)
        self._enabled = False
        self._task: BackgroundTask[_Done] | None = None
        self._slots: list[tuple[Slot, Image, list[torch.Tensor]] | None] = [None, None]
        self._next = 0
        self._started = 0
        self._stall = self._made_seconds = self._waited = 0.0
        self._settled = self._measured = self._paired = self._old_removed = False
        self._room = 0
        self._layout = self._warning = ""
        self._process_group: dist.ProcessGroup | None = None
        self._exchange: partner.Exchange | None = None
        directory = snapshot_directory(env)
        if directory is not None and env.attempt is not None and every != 0:
            self._enabled = True
            self._place = Place(
                directory=directory,
                job=f"{env.job_uid}:{hashlib.sha256(str(checkpoints).encode()).hexdigest()[:16]}",
                attempt=env.attempt,
                pod=env.node_rank,
                state=next(_states),
            )
            self._shares_memory = bool(env.local_pod)
            """All pods of `dtj run` are on one machine."""

    # --- after a restart -----------------------------------------------------------------------------------------

    def load(self, newest: Callable[[bool], Volume]) -> Choice | None:
        """Loads the newest snapshot that all ranks have. None: none is newer than the volume's checkpoint.

        `newest` returns the newest checkpoint by its manifest, or verified by reading all of it.
        """
        if not self._enabled:
            return None
        volume = newest(False)
        restore = Restore(self._place, self._group, self._live)
        choice = restore.choose(volume)
        if choice is None and not restore.is_empty and volume.step >= 0:
            # The newest checkpoint may be torn, and the one before it older than the snapshots.
            choice = restore.choose(newest(True))
        try:
            loaded = choice is not None and restore.load(choice)
        except SnapshotError:
            # A snapshot that does not load must not be chosen again: the checkpoint's turn comes.
            restore.forget()
            raise
        restore.forget()
        return choice if loaded else None

    def begin(self, step: int) -> None:
        """Begins the line of this attempt at `step`."""
        self._started = step
        if self._enabled:
            self._interval.begin(step)

    # --- while training ------------------------------------------------------------------------------------------

    @property
    def cost(self) -> float:
        """Seconds that a snapshot costs this rank; 0 if none was taken."""
        return self._interval.cost

    @property
    def step_seconds(self) -> float:
        """Seconds of this rank's steps, without what follows them."""
        return self._interval.step_seconds

    def agreed(self, cost: float, step_seconds: float) -> None:
        """Sets the interval from the greatest cost and step of any rank."""
        self._interval.agreed(cost, step_seconds)

    def settle(self, step: int) -> None:
        """Waits until the last snapshot is whole on all ranks, if another is due after this step.

        Called before the step is reported, so that a reported step is never lost with the one before.
        """
        if self._enabled and self._task is not None and self._interval.due(step):
            began = time.perf_counter()
            self._settled = self._settle()
            self._waited = time.perf_counter() - began

    def after_step(self, step: int, seconds: float | None) -> None:
        """Takes a snapshot if one is due after this step. `seconds`: of the step, None for the first one."""
        if not self._enabled:
            return
        if seconds is not None:
            self._interval.record_step(seconds)
        self._measure()
        if self._interval.due(step):
            self._take(step)

    def _take(self, step: int) -> None:
        began = time.perf_counter()
        if self._task is None:
            if not self._join():
                return
        elif not self._settled and not self._settle():
            return
        self._settled, self._made_seconds, problem = False, 0.0, ""
        prepared: tuple[Slot, Header] | None = None
        try:
            prepared = self._copy(step)
        except (SnapshotError, OSError) as e:
            # The thread reports it to the others, and all end their snapshots at the next one.
            problem = f"rank {self._group.rank}: {e}"
        copied = None
        if self._group.device.type == "cuda":
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record()
        self._interval.taken(step)
        self._measured = False
        self._task = BackgroundTask(partial(self._finish, prepared, problem, copied), nice=WRITER_NICE)
        self._stall = time.perf_counter() - began - self._made_seconds + self._waited
        self._waited = 0.0

    def _join(self) -> bool:
        """Prepares the first snapshot: the group of the threads, and whether every pod has room. A collective."""
        since = time.perf_counter()
        problem, size, free = "", 0, 0
        try:
            with torch.no_grad():
                keys = keys_of(*self._live.tensors())
            blob = self._live.blob()
            read_blob(blob)
            size = Image.of(keys, len(blob)).size
            self._place.directory.mkdir(mode=0o700, exist_ok=True)
            free = room.free_bytes(self._place.directory) + sum(path.stat().st_size for path in self._place.files())
        except (SnapshotError, OSError) as e:
            problem = f"rank {self._group.rank}: {e}"
        rows = self._group.all_objects((problem, self._place.pod, size, free))
        if problems := [text for text, *_ in rows if text]:
            return self._off(problems[0])
        for pod, need, least in room.needs([row[1:] for row in rows], self._shares_memory):
            if need > least:
                return self._off(
                    f"the ranks of a pod need {_mib(need)} of shared memory (/dev/shm), and {_mib(least)} are free; "
                    "raise the memory limit of the container, or write checkpoint.snapshot_every_steps: 0"
                )
            if pod == self._place.pod:
                self._room = least - need
        self._process_group = new_gloo_group(self._group)
        self._layout = self._live.layout()
        if self._group.rank == 0:
            log.info("memory snapshots: %s a rank, prepared in %.3f s", _mib(size), time.perf_counter() - since)
        return True

    @torch.no_grad()
    def _copy(self, step: int) -> tuple[Slot, Header]:
        """Copies the state into the older file."""
        private, data = self._live.tensors()
        blob = self._live.blob()
        keys = keys_of(private, data)
        held = self._slots[self._next]
        if held is None or held[1].keys != keys or len(blob) > held[1].blob_room:
            since = time.perf_counter()
            self._slots[self._next] = None
            image = Image.of(keys, len(blob))
            path = self._place.path("own", self._group.rank)
            slot = Slot(path.with_name(f"{path.name}-{self._next}"), image.size)
            self._slots[self._next] = held = (slot, image, image.views(slot.bytes))
            self._made_seconds = time.perf_counter() - since
        slot, image, views = held
        self._next = 1 - self._next
        slot.wipe()
        fill(slot, views, image, [tensor for _, tensor in (*private, *data)], blob)
        header = Header(
            job=self._place.job,
            state=self._place.state,
            rank=self._group.rank,
            world_size=self._group.world_size,
            attempt=self._place.attempt,
            started=self._started,
            step=step,
            layout=self._layout,
            manifest_bytes=len(image.manifest),
            blob_bytes=len(blob),
            private_bytes=image.private_bytes,
            data_bytes=image.data_bytes,
            private_digest="",
            data_digest="",
        )
        return slot, header

    # --- in the thread -------------------------------------------------------------------------------------------

    def _finish(self, prepared: tuple[Slot, Header] | None, problem: str, copied: torch.cuda.Event | None) -> _Done:
        """Makes the file valid, and returns once every rank has; the same problem on all of them."""
        if copied is not None:
            copied.synchronize()
        size: partner.Size | None = None
        if prepared is not None:
            slot, header = prepared
            private = slot.bytes[HEADER_BYTES : HEADER_BYTES + header.private_bytes]
            data = slot.bytes[HEADER_BYTES + header.private_bytes :]
            header = replace(header, private_digest=digest(private), data_digest=digest(data))
            slot.commit(header)
            prepared = (slot, header)
            size = partner.Size(
                pod=self._place.pod,
                private_bytes=header.private_bytes,
                data_bytes=header.data_bytes,
                data_digest=header.data_digest,
                room=self._room,
            )
        problem = self._agree(problem)
        if not problem and prepared is not None and size is not None:
            if not self._paired:
                self._pair(size)
            if self._exchange is not None:
                try:
                    self._exchange.swap(*prepared)
                except OSError as e:
                    problem = f"rank {self._group.rank}, its partner's copy: {e}"
                problem = self._agree(problem)
        return _Done(problem, time.thread_time())

    def _pair(self, mine: partner.Size) -> None:
        """Finds the partner, once it is known which ranks have the same data."""
        self._paired = True
        assert self._process_group is not None
        sizes: list[Any] = [None] * self._group.world_size
        if self._group.world_size > 1:
            dist.all_gather_object(sizes, mine, group=self._process_group)
        else:
            sizes = [mine]
        found = partner.pair([size.pod for size in sizes], self._group.rank)
        if found is None:
            return
        whole = partner.sent_whole(sizes)
        if lacks := partner.lacking(sizes, whole):
            self._warning = (
                f"copies for partners are off, and a lost pod resumes from the newest checkpoint: they need "
                f"{_mib(lacks[0])} of a pod's shared memory (/dev/shm), and {_mib(lacks[1])} are free"
            )
            return
        partners = partner.Partners(*found, whole)
        path = self._place.path("held", partners.source)
        self._exchange = partner.Exchange(partners, self._process_group, path)

    def _agree(self, problem: str) -> str:
        """Returns the first rank's problem, "" if none has one; every rank returns only when all have called."""
        if self._group.world_size == 1:
            return problem
        rows = [torch.zeros(1, dtype=torch.int64) for _ in range(self._group.world_size)]
        dist.all_gather(rows, torch.tensor([int(bool(problem))]), group=self._process_group)
        if not any(int(row) for row in rows):
            return ""
        texts: list[Any] = [None] * self._group.world_size
        dist.all_gather_object(texts, problem, group=self._process_group)
        return str(next(text for text in texts if text))

    # --- the end of one, and of all ------------------------------------------------------------------------------

    def _measure(self) -> None:
        """Records the cost of a snapshot whose thread has ended."""
        if self._task is not None and self._task.done() and not self._measured:
            self._measured = True
            try:
                done = self._task.result()
            except Exception:  # noqa: BLE001 - `_settle` handles it
                return
            # Where the training computes on the same cores, the thread takes from it.
            beside = done.cpu_seconds if self._group.device.type == "cpu" else 0.0
            self._interval.record_cost(self._stall + beside)

    def _settle(self) -> bool:
        """Waits until the last snapshot is whole on all ranks. Returns False if snapshots have ended."""
        assert self._task is not None
        first = not self._old_removed
        try:
            done = self._task.result()
        except (RuntimeError, OSError, ValueError) as e:
            # A rank is gone, so the group is about to restart.
            log.debug("a memory snapshot was not finished: %s", e)
            self._enabled = False
            return False
        self._measure()
        if done.problem:
            return self._off(done.problem)
        if self._warning and self._group.rank == 0:
            self._notify("Warning", names.Reason.SNAPSHOTS_OFF, self._warning)
        self._warning = ""
        if first:
            # Only now does every rank have one of this attempt.
            self._old_removed = True
            self._remove(lambda attempt: attempt != self._place.attempt)
        return True

    def _off(self, why: str) -> bool:
        """Ends the snapshots on all ranks, which call this for the same reason; rank 0 reports it."""
        if self._group.rank == 0:
            self._notify("Warning", names.Reason.SNAPSHOTS_OFF, OFF + why)
        self._enabled = False
        self._slots = [None, None]
        self._exchange = None
        self._remove(lambda _: True)
        return False

    def _remove(self, which: Callable[[int], bool]) -> None:
        for path in self._place.files():
            attempt = path.name.split("-")[1]
            if attempt.isdecimal() and which(int(attempt)):
                path.unlink(missing_ok=True)

    def discard(self) -> None:
        """Removes this pod's snapshots: the run has ended, or must not continue from them."""
        if self._enabled:
            self.close()
            self._remove(lambda _: True)
            with contextlib.suppress(OSError):
                self._place.directory.rmdir()

    def close(self) -> None:
        """Waits a few seconds for the thread. The files stay for the next attempt."""
        self._enabled, was = False, self._enabled
        if was and self._task is not None:
            self._task.join()


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
