"""Ranks that are killed, and pods that are lost, resume from shared memory to the last bit."""

from __future__ import annotations

import re
import shutil
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.trainer.ranks import AgentSocket, finished, history, ranks
from tests.unit.trainer.ranks_snapshots import own_loop, train

pytestmark = pytest.mark.torch
STEPS, KILL_AT = 12, 10


@pytest.fixture
def job() -> Iterator[str]:
    """The uid of a job whose pods' shared memory is removed at the end."""
    uid = f"test-{uuid.uuid4().hex[:12]}"
    yield uid
    for folder in pods(uid):
        shutil.rmtree(folder)


def pods(job: str) -> list[Path]:
    return sorted(Path("/dev/shm").glob(f"dtj-{job}-*"))


def losses(directory: Path) -> tuple[dict[int, float], int]:
    """Returns the losses by step, and how many steps were done twice: those must have the same loss again."""
    out: dict[int, float] = {}
    lines = history(directory)
    for line in lines:
        assert out.setdefault(line["step"], line["loss"]) == line["loss"], f"another loss the second time: {line}"
    return out, len(lines) - len(out)


RESIDUALS = {"method": "topk", "ratio": 0.1, "min_elements": 16}
"""Each rank has residuals of its own, which are in its snapshots."""
CASES: list[tuple[str, dict[str, Any], int, int, str]] = [
    # strategy, its options, ranks, ranks of a pod, what a lost pod's state comes from
    ("ddp", {}, 2, 1, "a replica's memory"),
    ("ddp", {"communication": RESIDUALS}, 2, 1, "a replica's memory"),
    ("fsdp", {}, 2, 1, "a partner's memory"),
    ("fsdp_scratch", {}, 2, 1, "a partner's memory"),
    ("zero1", {}, 2, 1, "a partner's memory"),
    ("hsdp", {"shard_size": 2}, 4, 2, "a replica's memory"),
]


@pytest.mark.parametrize(("strategy", "options", "world", "in_pod", "source"), CASES, ids=lambda c: str(c))
def test_killed_run_resumes_from_memory_or_from_another_pods(
    tmp_path: Path, job: str, strategy: str, options: dict[str, Any], world: int, in_pod: int, source: str
) -> None:
    """Kills all ranks at one step, tries what all pods and what one pod less can resume, and compares with no kill."""
    whole, broken, out = tmp_path / "a", tmp_path / "b", str(tmp_path / "out")
    more = {"RANKS_IN_POD": str(in_pod), "DTJ_JOB_UID": job}
    finished(world, train, tmp_path, "", strategy, str(whole), STEPS, options)
    arguments = (strategy, str(broken), STEPS, options)
    with ranks(world, train, tmp_path, out, *arguments, **more, DTJ_ATTEMPT="1", KILL_AT=str(KILL_AT)) as group:
        codes = group.wait()
        assert -signal.SIGKILL in codes, f"{codes}\n{group.everything()}"
    kept = shutil.copytree(broken, tmp_path / "kept")
    memory = {folder: shutil.copytree(folder, tmp_path / folder.name) for folder in pods(job)}
    # Once is enough for what differs between strategies alone: what a lost pod's state comes from.
    everything = [(None, "memory")] if strategy in ("ddp", "fsdp") else []
    for lost, wanted in (*everything, (pods(job)[1], source)):
        shutil.rmtree(broken)
        shutil.copytree(kept, broken)
        for folder, before in memory.items():
            if folder != lost:
                shutil.copytree(before, folder, dirs_exist_ok=True)
            elif folder.is_dir():
                shutil.rmtree(folder)
        last = finished(world, train, tmp_path, "", *arguments, **more, DTJ_ATTEMPT="2")
        assert resumed(last) in ((KILL_AT - 1, wanted), (KILL_AT, wanted)), last
        again, repeated = losses(broken)
        assert again == losses(whole)[0]
        assert repeated <= 1
        assert pods(job) == [], "a run that has saved its end leaves nothing"


def resumed(output: str) -> tuple[int, str]:
    """Returns the step that a run resumed, and from where."""
    found = re.search(r"resumed step (\d+) from (.*)", output)
    assert found, output
    return int(found[1]), found[2]


def test_loop_of_its_own_without_a_volume_resumes_from_memory(tmp_path: Path, job: str) -> None:
    agent, env = AgentSocket(tmp_path / "agent"), {"DTJ_JOB_UID": job}
    whole = finished(2, own_loop, tmp_path, "", None, STEPS)
    out = str(tmp_path / "out")
    with ranks(2, own_loop, tmp_path, out, None, STEPS, **env, DTJ_ATTEMPT="1", KILL_AT=str(KILL_AT)) as group:
        assert -signal.SIGKILL in group.wait()
    with agent:
        env |= {"DTJ_ATTEMPT": "2", "DTJ_AGENT_SOCKET": str(agent.path)}
        output = finished(2, own_loop, tmp_path, out, None, STEPS, **env)
    step, source = resumed(output)
    assert (step >= KILL_AT - 1, source) == (True, "memory")
    assert output.splitlines()[-1] == whole.splitlines()[-1]
    assert {h["resumedFrom"] for h in agent.heard if h.get("resumedStep")} == {"memory"}


def test_pod_without_room_says_so_once_and_trains_on(tmp_path: Path, job: str) -> None:
    agent = AgentSocket(tmp_path / "agent")
    env = {"DTJ_JOB_UID": job, "DTJ_ATTEMPT": "1", "NO_ROOM": "1", "DTJ_AGENT_SOCKET": str(agent.path)}
    with agent:
        finished(2, train, tmp_path, "", "ddp", None, STEPS, {}, **env)
    (event,) = [h["event"] for h in agent.heard if "event" in h]
    assert (event["type"], event["reason"]) == ("Warning", "SnapshotsOff")
    assert "MiB of shared memory (/dev/shm), and 0.0 MiB are free" in event["message"]


def test_newer_checkpoint_wins_over_an_older_snapshot(tmp_path: Path, job: str) -> None:
    directory, out, env = tmp_path / "checkpoints", str(tmp_path / "out"), {"DTJ_JOB_UID": job}
    arguments = ("ddp", str(directory), STEPS, {})
    with ranks(2, train, tmp_path, out, *arguments, **env, DTJ_ATTEMPT="1", KILL_AT="5") as group:
        assert -signal.SIGKILL in group.wait()
    kept = {folder: shutil.copytree(folder, tmp_path / folder.name) for folder in pods(job)}
    finished(2, train, tmp_path, out, *arguments, **env, DTJ_ATTEMPT="2")
    for folder, before in kept.items():
        shutil.copytree(before, folder)
    output = finished(2, train, tmp_path, out, "ddp", str(directory), STEPS + 1, {}, **env, DTJ_ATTEMPT="3")
    assert f"resumed from step-{STEPS:08d}" in output
