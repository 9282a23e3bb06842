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
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from dtj_contract import names
from dtj_trainer.checkpoint.background_task import JOIN_SECONDS, BackgroundTask
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.errors import SnapshotError
from dtj_trainer.snapshots import room
from dtj_trainer.snapshots.choice import Choice, Volume
from dtj_trainer.snapshots.completion import Completion, Done, Prepared, mebibytes
from dtj_trainer.snapshots.contents import LiveState, read_blob
from dtj_trainer.snapshots.image import Image, fill
from dtj_trainer.snapshots.interval import Interval
from dtj_trainer.snapshots.place import Place, snapshot_directory
from dtj_trainer.snapshots.restore import Restore
from dtj_trainer.snapshots.slot import Header, Slot

log = logging.getLogger(__name__)
Notify = Callable[[Literal["Normal", "Warning"], str, str], None]
Every = int | Literal["auto"]
WRITER_NICE = 5
"""The next snapshot waits for the thread, so it yields to the training only a little."""
END_SECONDS = 60.0
"""How long the end of a run waits for the thread, which waits for those of all ranks: none of them has failed."""
OFF = "memory snapshots are off, and a restart resumes from the newest checkpoint: "
_states = itertools.count(1)


class _Held(NamedTuple):
    """One of the two files, and where the parts of the state are in it."""

    slot: Slot
    image: Image
    views: list[torch.Tensor]
    trained: list[torch.Tensor]
    """The views of the trained weights."""


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
        self._group, self._notify, self._has_volume = group, notify, checkpoints is not None
        self._live = LiveState(parts)
        self._interval = Interval(None if every == "auto" else every or None)
        self._enabled = False
        self._task: BackgroundTask[Done] | None = None
        self._slots: list[_Held | None] = [None, None]
        self._next = 0
        self._started = 0
        self._stall = self._made_seconds = self._waited = 0.0
        self._settled = self._measured = self._old_removed = self._reported_spoiled = False
        self._layout = self._whole_layout = ""
        self._completion: Completion | None = None
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
        try:
            choice = self._load_newest(restore, volume)
            if choice is None and not restore.is_empty and volume.step >= 0:
                # The newest checkpoint may be torn, and the one before it older than the snapshots.
                choice = self._load_newest(restore, newest(True))
        except SnapshotError:
            # A snapshot that does not load must not be chosen again: the checkpoint's turn comes.
            restore.forget()
            raise
        restore.forget()
        if choice is None:
            return None
        if choice.taken_by != self._group.world_size and self._group.rank == 0:
            message = (
                f"the snapshot of step {choice.step} was taken by {choice.taken_by} ranks, "
                f"and {self._group.world_size} load it"
            )
            self._notify("Normal", names.Reason.WORLD_RESIZED, message)
        return choice

    def _load_newest(self, restore: Restore, volume: Volume) -> Choice | None:
        """Loads what all ranks can load, newest first. None: nothing changed."""
        while choice := restore.choose(volume):
            if restore.load(choice):
                return choice
            if self._group.rank == 0:
                log.warning("the snapshot of step %d is damaged or does not fit: trying an older one", choice.step)
        return None

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

    def take_last(self, step: int) -> None:
        """Takes a snapshot of the step after which the group stops, if there is no volume that it was saved to.

        The pods may stay, as those of a group that stops in order to grow do.
        """
        if not self._enabled or self._has_volume:
            return
        self._take(step)
        if self._enabled and self._task is not None:
            self._settle()

    def _take(self, step: int) -> None:
        began = time.perf_counter()
        if self._task is None:
            if not self._join():
                return
        elif not self._settled and not self._settle():
            return
        self._settled, self._made_seconds, problem = False, 0.0, ""
        prepared: Prepared | None = None
        assert self._completion is not None
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
        self._completion.beside.begin()
        self._task = BackgroundTask(partial(self._completion.finish, prepared, problem, copied), nice=WRITER_NICE)
        self._stall = time.perf_counter() - began - self._made_seconds + self._waited
        self._waited = 0.0

    def _join(self) -> bool:
        """Prepares the first snapshot: the group of the threads, and whether every pod has room. A collective."""
        since = time.perf_counter()
        problem, size, free, left = "", 0, 0, 0
        try:
            with torch.no_grad():
                keys = self._live.keys(*self._live.tensors())
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
                    f"the ranks of a pod need {mebibytes(need)} of shared memory (/dev/shm), and "
                    f"{mebibytes(least)} are free; "
                    "raise the memory limit of the container, or write checkpoint.snapshot_every_steps: 0"
                )
            if pod == self._place.pod:
                left = least - need
        self._completion = Completion(self._group, self._place, left)
        self._layout = self._live.layout(self._group.world_size)
        self._whole_layout = self._live.whole_layout(self._group.world_size)
        if self._group.rank == 0:
            log.info("memory snapshots: %s a rank, prepared in %.3f s", mebibytes(size), time.perf_counter() - since)
        return True

    @torch.no_grad()
    def _copy(self, step: int) -> Prepared:
        """Copies the state into the older file."""
        private, data = self._live.tensors()
        blob = self._live.blob()
        keys = self._live.keys(private, data)
        held = self._slots[self._next]
        if held is None or held.image.keys != keys or len(blob) > held.image.blob_room:
            since = time.perf_counter()
            self._slots[self._next] = None
            image = Image.of(keys, len(blob))
            path = self._place.path("own", self._group.rank)
            slot = Slot(path.with_name(f"{path.name}-{self._next}"), image.size)
            views, every = image.views(slot.bytes), [name for name, _ in (*private, *data)]
            trained = self._live.trained()
            checked = [view for name, view in zip(every, views, strict=True) if name in trained]
            self._slots[self._next] = held = _Held(slot, image, views, checked)
            self._made_seconds = time.perf_counter() - since
        slot, image, views, _ = held
        self._next = 1 - self._next
        slot.wipe()
        fill(slot, views, image, [tensor for _, tensor in (*private, *data)], blob)
        shard, shards = self._live.shard or (0, 1)
        header = Header(
            job=self._place.job,
            state=self._place.state,
            rank=self._group.rank,
            world_size=self._group.world_size,
            attempt=self._place.attempt,
            started=self._started,
            step=step,
            layout=self._layout,
            whole_layout=self._whole_layout,
            shard=shard,
            shards=shards,
            manifest_bytes=len(image.manifest),
            blob_bytes=len(blob),
            private_bytes=image.private_bytes,
            data_bytes=image.data_bytes,
            private_digest="",
            data_digest="",
        )
        return Prepared(slot, header, held.trained)

    # --- the end of one, and of all ------------------------------------------------------------------------------

    def _measure(self) -> None:
        """Records the cost of a snapshot whose thread has ended."""
        if self._task is not None and self._task.done() and not self._measured:
            self._measured = True
            try:
                done = self._task.result()
            except Exception:  # noqa: BLE001 - `_settle` handles it
                return
            # Where the training computes on the same cores, the threads beside it take from it.
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
        if done.spoiled:
            # The older snapshot stays, and the next one takes the place of this one.
            self._next = 1 - self._next
            if self._group.rank == 0 and not self._reported_spoiled:
                log.warning("weights are not finite: memory snapshots of them are not kept")
            self._reported_spoiled = True
            return True
        assert self._completion is not None
        if self._completion.warning and self._group.rank == 0:
            self._notify("Warning", names.Reason.SNAPSHOTS_OFF, self._completion.warning)
        self._completion.warning = ""
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
        self._completion = None
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
            self.close(END_SECONDS)
            self._remove(lambda _: True)
            with contextlib.suppress(OSError):
                self._place.directory.rmdir()

    def close(self, seconds: float = JOIN_SECONDS) -> None:
        """Waits at most `seconds` for the thread. The files stay for the next attempt."""
        self._enabled, was = False, self._enabled
        if was and self._task is not None:
            self._task.join(seconds)
