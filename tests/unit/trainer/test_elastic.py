"""A run whose world size changes uses each sample once, and trains as an undisturbed one."""

from __future__ import annotations

import json
import shutil
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.trainer.ranks import AgentSocket, finished, history, ranks
from tests.unit.trainer.ranks_elastic import poisoned, train
from tests.unit.trainer.test_snapshot_recovery import pods, resumed

pytestmark = pytest.mark.torch
STEPS = 15


@pytest.fixture
def job() -> Iterator[str]:
    """The uid of a job whose pods' shared memory is removed at the end."""
    uid = f"test-{uuid.uuid4().hex[:12]}"
    yield uid
    for folder in pods(uid):
        shutil.rmtree(folder)


def steps(directory: Path) -> list[dict[str, Any]]:
    """Returns what the ranks did in each step, as the last attempt that did it has written."""
    lines = map(json.loads, (directory / "steps.jsonl").read_text().splitlines())
    return list({line["step"]: line for line in lines}.values())


def samples(directory: Path) -> list[list[int]]:
    """Returns the samples of each step, in order. A repeated one, which counts for nothing, is left out."""
    return [sorted({i for rank in line["micro"] for micro in rank for i in micro}) for line in steps(directory)]


def losses(directory: Path) -> list[float]:
    return list({line["step"]: line["loss"] for line in history(directory)}.values())


def killed(world: int, folder: Path, out: str, directory: Path, at: int, **env: str) -> str:
    """Runs a group that is killed at a step. Returns rank 0's output."""
    with ranks(world, train, folder, out, str(directory), {"steps": STEPS}, **env, KILL_AT=str(at)) as group:
        assert -signal.SIGKILL in group.wait(), group.everything()
        return group.output()


def test_memory_of_another_world_is_loaded_where_nothing_is_sharded(tmp_path: Path, job: str) -> None:
    """Two ranks, one, two again: the second rank's pod comes back empty."""
    whole, broken, agent = tmp_path / "a", tmp_path / "b", AgentSocket(tmp_path / "agent")
    env = {"DTJ_JOB_UID": job}
    finished(2, train, tmp_path, "", str(whole), {"steps": STEPS})
    killed(2, tmp_path, str(tmp_path / "1"), broken, 4, **env, DTJ_ATTEMPT="1")
    shutil.rmtree(pods(job)[1])
    alone = killed(1, tmp_path, str(tmp_path / "2"), broken, 9, **env, DTJ_ATTEMPT="2")
    assert resumed(alone) in ((4, "memory"), (5, "memory"))
    with agent:
        env |= {"DTJ_ATTEMPT": "3", "DTJ_AGENT_SOCKET": str(agent.path)}
        last = finished(2, train, tmp_path, "", str(broken), {"steps": STEPS}, **env)
    assert resumed(last) in ((9, "a replica's memory"), (10, "a replica's memory"))
    (event,) = [h["event"] for h in agent.heard if "event" in h]
    assert event["reason"] == "WorldResized"
    assert "was taken by 1 ranks, and 2 load it" in event["message"]
    assert [line["world"] for line in steps(broken)] != [2] * STEPS
    assert samples(broken) == samples(whole)
    assert losses(broken) == pytest.approx(losses(whole), abs=1e-6)


def test_snapshot_with_weights_that_are_not_finite_is_not_kept(tmp_path: Path, job: str) -> None:
    env, out = {"DTJ_JOB_UID": job}, str(tmp_path / "out")
    with ranks(2, poisoned, tmp_path, out, **env, DTJ_ATTEMPT="1", KILL_AT="8") as group:
        assert -signal.SIGKILL in group.wait(), group.everything()
        assert "weights are not finite" in group.output()
    assert resumed(finished(2, poisoned, tmp_path, out, **env, DTJ_ATTEMPT="2")) == (5, "memory")
