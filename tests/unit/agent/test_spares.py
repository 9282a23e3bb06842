"""Spares and elastic groups, with real processes and real signals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dtj_contract import names
from tests.lib.waiting import wait_until
from tests.unit.agent.harness import Group, running


def wait_world(group: Group, attempt: int, ordinals: list[int]) -> dict[str, Any]:
    """Waits until these pods train as `attempt`, with ranks by ordinal. Returns the status."""

    def there() -> dict[str, Any] | None:
        status = group.status()
        if status.get("phase") != "Running" or status["attempt"] != attempt or not group.stepped(status, 1):
            return None
        environments = [group.ran(attempt, rank) for rank in range(len(ordinals))]
        return status if all(environments) else None

    status = wait_until(f"attempt {attempt}", there, detail=group.logs)
    for rank, ordinal in enumerate(ordinals):
        environment = group.ran(attempt, rank) or {}
        keys = (names.ENV_ORDINAL, "RANK", "GROUP_RANK", "WORLD_SIZE", "GROUP_WORLD_SIZE")
        assert [int(environment[key]) for key in keys] == [ordinal, rank, rank, len(ordinals), len(ordinals)]
    assert (status["replicas"], status["worldSize"], status["waitingFor"]) == (len(ordinals), len(ordinals), [])
    return status


def states(group: Group) -> dict[int, str]:
    return {member["ordinal"]: member["state"] for member in group.status().get("members", [])}


def lose(group: Group, ordinal: int) -> None:
    """Kills an agent; its workers die with it, as with a container."""
    group.agents[ordinal].kill()
    group.agents[ordinal].wait()


def test_spare_takes_over_and_the_pod_that_returns_is_the_next_spare(tmp_path: Path) -> None:
    group = Group(tmp_path, 3, DTJ_REPLICAS="2", DTJ_SPARES="1")
    try:
        group.start(0, 1)
        wait_world(group, 1, [0, 1])
        group.start(2)
        wait_until("the spare", lambda: states(group) == {0: "running", 1: "running", 2: "idle"}, detail=group.logs)
        lose(group, 1)
        status = wait_world(group, 2, [0, 2])
        recovery = status["recoveries"][-1]
        assert (recovery["kind"], recovery["reason"], recovery["counted"]) == ("Spare", "PodLost", False)
        assert [event["reason"] for event in status["events"]] == ["SpareUsed"]
        group.start(1, DTJ_STATE_DIR=str(tmp_path / "new-disk"))
        wait_until("the new spare", lambda: states(group) == {0: "running", 1: "idle", 2: "running"}, detail=group.logs)
        lose(group, 2)
        wait_world(group, 3, [0, 1])
        group.tell("finish")
        assert [group.wait_exit(0), group.wait_exit(1)] == [0, 0]
        assert group.outcome(0) == group.outcome(1)
        assert group.outcome()["message"] == "all 2 workers of attempt 3 exited with 0"
    finally:
        group.close()


def test_elastic_group_trains_on_without_a_pod_and_grows_when_it_is_back(tmp_path: Path) -> None:
    """The script saves nothing at SIGTERM, so the growth follows a checkpoint."""
    volume = tmp_path / "volume"
    volume.mkdir()
    elastic = {names.ENV_MIN_REPLICAS: "2", names.ENV_ELASTIC_WAIT: "0.5", names.ENV_CHECKPOINT_DIR: str(volume)}
    with running(tmp_path / "group", 3, **elastic) as group:
        wait_world(group, 1, [0, 1, 2])
        lose(group, 1)
        status = wait_world(group, 2, [0, 2])
        assert (status["recoveries"][-1]["fromReplicas"], status["recoveries"][-1]["toReplicas"]) == (3, 2)
        group.tell("save")
        first = wait_until("a checkpoint", lambda: group.status().get("checkpoint"), detail=group.logs)
        group.start(1, DTJ_STATE_DIR=str(tmp_path / "new-disk"))

        def grown() -> bool:
            group.tell("save")
            return bool(group.status().get("attempt") == 3)

        wait_until("the group to grow", grown, detail=group.logs)
        status = wait_world(group, 3, [0, 1, 2])
        recovery = status["recoveries"][-1]
        assert (recovery["kind"], recovery["reason"], recovery["counted"]) == ("Resize", "GroupGrown", False)
        assert recovery["resumedStep"] > first["step"]
        assert [event["reason"] for event in status["events"]] == ["GroupShrunk", "GroupGrown"]
        group.tell("finish")
        assert [group.wait_exit(ordinal) for ordinal in range(3)] == [0, 0, 0]
