"""Faults with needs of their own, one group each: full volumes, full shared memory, names that stay old, partitions."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.faults import FAULTS
from tests.chaos.group import PLAIN, TORCH, Group, Shape
from tests.chaos.run import check_end
from tests.unit.trainer.volume import small_volume

HEADER_BYTES = 4096
"""Of a snapshot (dtj_trainer/snapshots/slot.py)."""
SMALL_SHM = 'mount -t tmpfs -o size=64k dtj-test /dev/shm && exec "$0" "$@"'


@contextlib.contextmanager
def running(shape: Shape, **options: object) -> Iterator[Group]:
    """Starts a group, and ends its processes in any case."""
    group = Group(shape, **options)
    try:
        group.start()
        yield group
    finally:
        group.close()


def fill(path: Path) -> None:
    """Writes a file until its volume is full."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


def kill_rank(group: Group, rank: int) -> None:
    """Kills the worker of a rank."""
    group.signal(signal.SIGKILL, group.workers()[rank])


def test_full_volume_costs_checkpoints_and_holds_a_restart_until_there_is_room(tmp_path: Path) -> None:
    """The lease of the next attempt must be on the volume before any of its workers starts."""
    with small_volume(tmp_path / "volume", 1) as volume, running(PLAIN, volume=volume) as group:
        group.wait("a checkpoint", lambda records: records.commits)
        ballast = volume / "ballast"
        fill(ballast)
        since, commits = time.monotonic(), len(group.look().commits)
        group.wait("a save that finds no room", lambda records: "no checkpoint of step" in group.output())
        group.wait_steps(0, 1, since)
        kill_rank(group, 3)
        group.wait("the lease that can't be written", lambda records: "No space left" in agents_only(group))
        assert group.look().newest == 1
        assert len(group.records.commits) <= commits + 1, "the one that was being written"
        ballast.unlink()
        group.wait_steps(1, 3, time.monotonic())
        check_end(group)


def agents_only(group: Group) -> str:
    """Returns what the agents have logged themselves."""
    return "\n".join(line for line in group.output().splitlines() if line.startswith("[agent]"))


@pytest.mark.thorough
@pytest.mark.torch
def test_full_shared_memory_turns_snapshots_off_and_the_group_recovers() -> None:
    """Each agent has a /dev/shm of its own with 64 KiB, in a mount namespace."""
    shape = dataclasses.replace(TORCH, replicas=1)
    with running(shape, program=["unshare", "-Urm", "sh", "-c", SMALL_SHM]) as group:
        group.wait("the warning", lambda records: "SnapshotsOff" in group.output())
        group.wait("a checkpoint", lambda records: [*group.volume.glob("step-*/manifest.json")])
        kill_rank(group, 1)
        group.wait_steps(1, 3, time.monotonic())
        assert "resumed from step-" in group.output()
        check_end(group)


@pytest.mark.thorough
@pytest.mark.torch
def test_snapshots_are_resumed_from_unless_they_are_damaged() -> None:
    with running(TORCH) as group:
        group.wait("a checkpoint", lambda records: [*group.volume.glob("step-*/manifest.json")])
        for _ in range(10):  # a checkpoint may be the newer one
            newest = group.look().newest
            kill_rank(group, 1)
            group.wait_steps(newest, 10, time.monotonic())
            if group.count("] resumed step "):
                break
        assert group.count("] resumed step ")
        resumed, newest = group.count("] resumed step "), group.look().newest
        group.signal(signal.SIGSTOP, *group.workers().values())
        for path in (path for ordinal in group.pods for path in group.snapshots(ordinal).glob("*")):
            invert(path)
        group.signal(signal.SIGKILL, *group.workers().values())
        group.wait_steps(newest, 3, time.monotonic())
        (step,) = {begin.step for begin in group.records.begins if begin.attempt == newest + 1}
        assert step > 0
        assert step % 20 == 0
        assert group.count("] resumed step ") == resumed
        check_end(group)


def invert(path: Path) -> None:
    """Changes everything but the header of a snapshot."""
    with path.open("r+b") as file:
        file.seek(HEADER_BYTES)
        content = file.read()
        file.seek(HEADER_BYTES)
        file.write(bytes(byte ^ 0xFF for byte in content))


@pytest.mark.parametrize("ordinal", [0, 2])
def test_new_pod_is_found_while_dns_answers_with_its_old_address(ordinal: int) -> None:
    with running(PLAIN) as group:
        since = time.monotonic()
        group.replace(ordinal)
        group.publish_names(but=ordinal)
        group.wait_steps(1, 3, since)
        # Nobody that starts now knows the new address, and its name is still wrong.
        since = time.monotonic()
        group.replace(1)
        group.publish_names(but=ordinal)
        group.wait_steps(2, 3, since)
        check_end(group)


def test_partition_that_outlasts_the_heartbeats_ends_in_one_group() -> None:
    with running(PLAIN) as group:
        FAULTS["partition, long"].inject(group, random.Random(1))
        group.wait_steps(1, 3, time.monotonic())
        check_end(group)
