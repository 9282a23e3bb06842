"""Sharded snapshots are divided among another number of ranks, to the last bit and without a volume."""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.trainer.ranks import finished, ranks
from tests.unit.trainer.ranks_reshard import own_loop
from tests.unit.trainer.test_snapshot_recovery import pods, resumed

pytestmark = pytest.mark.torch


@pytest.fixture
def job() -> Iterator[str]:
    """The uid of a job whose pods' shared memory is removed at the end."""
    uid = f"test-{uuid.uuid4().hex[:12]}"
    yield uid
    for folder in pods(uid):
        shutil.rmtree(folder)


def digests(output: str) -> dict[tuple[str, int], str]:
    """Returns the digests of the whole state that a rank has printed."""
    return {(when, int(step)): text for when, step, text in re.findall(r"(loaded|last) (\d+) ([0-9a-f]{64})", output)}


@pytest.mark.parametrize("strategy", ["fsdp", "fsdp_scratch", "hsdp", "zero2"])
def test_sharded_state_is_divided_among_two_and_then_three_ranks(tmp_path: Path, job: str, strategy: str) -> None:
    """Four pods, of which the upper half is lost, two, and three."""
    env = {"DTJ_JOB_UID": job}
    four = digests(finished(4, own_loop, tmp_path, strategy, 4, **env, DTJ_ATTEMPT="1"))
    for lost in pods(job)[2:]:
        shutil.rmtree(lost)
    output = finished(2, own_loop, tmp_path, strategy, 7, **env, DTJ_ATTEMPT="2")
    assert resumed(output)[0] == 4
    two = digests(output)
    assert two["loaded", 4] == four["last", 4]
    output = finished(3, own_loop, tmp_path, strategy, 9, **env, DTJ_ATTEMPT="3")
    assert resumed(output)[0] == 7
    three = digests(output)
    assert three["loaded", 7] == two["last", 7]
    whole = digests(finished(4, own_loop, tmp_path, strategy, 9, DTJ_JOB_UID=f"{job}-whole", DTJ_ATTEMPT="1"))
    assert three["last", 9] == whole["last", 9], "the optimizer's state was whole too"


@pytest.mark.parametrize("world", [2, 3])
def test_damage_between_choice_and_read_leads_all_ranks_to_the_older_step(tmp_path: Path, job: str, world: int) -> None:
    """Rank 1's file is damaged, in the same world and in another one."""
    env = {"DTJ_JOB_UID": job}
    finished(2, own_loop, tmp_path, "fsdp", 4, **env, DTJ_ATTEMPT="1")
    for folder in pods(job):
        for copy in folder.glob("*held*"):
            copy.unlink()
    with ranks(world, own_loop, tmp_path, "fsdp", 3, 1, **env, DTJ_ATTEMPT="2") as group:
        assert group.wait() == [0] * world, group.everything()
        for rank in range(world):
            assert list(digests(group.output(rank))) == [("loaded", 3), ("last", 3)], group.everything()
