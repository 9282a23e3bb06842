"""The agent that leads is lost like any other: its members elect another one, and the training continues."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from dtj_contract import names
from tests.lib.waiting import wait_until
from tests.unit.agent.harness import Group, kill, running


def wait_later(group: Group, attempt: int) -> dict[str, Any]:
    """Waits until an attempt after this one has done a step. Returns the leader's status."""

    def there() -> dict[str, Any] | None:
        status = group.status()
        later = status.get("phase") == "Running" and status["attempt"] > attempt
        return status if later and group.stepped(status, 1) else None

    status: dict[str, Any] = wait_until("a step of a later attempt", there, timeout=90.0, detail=group.logs)
    return status


@pytest.mark.parametrize("keeps_disk", [True, False], ids=["agent", "pod"])
def test_group_survives_the_loss_of_whichever_agent_leads(tmp_path: Path, keeps_disk: bool) -> None:
    with running(tmp_path, 3, **{names.ENV_MAX_RESTARTS: "100"}) as group:
        status = group.wait_attempt(1)
        leaders = []
        for round_ in range(4):
            leader = status["leader"]["ordinal"]
            leaders.append(leader)
            kill(group.agents[leader].pid)
            group.wait_exit(leader)
            disk = {} if keeps_disk else {names.ENV_STATE_DIR: str(tmp_path / f"disk-{round_}")}
            group.start(leader, **disk)
            status = wait_later(group, status["attempt"])
            assert status["leader"]["ordinal"] != leader, group.logs()
        last = status["recoveries"][-1]
        assert (last["kind"], last["reason"]) == ("Pod", "AgentCrashed" if keeps_disk else "PodLost"), group.logs()
        assert (status["restarts"]["pod"], len(set(leaders)) > 1) == (4, True)
        assert status["restarts"]["counted"] == (4 if keeps_disk else 0)
        group.tell("finish")
        assert [group.wait_exit(ordinal) for ordinal in range(3)] == [0, 0, 0]
        assert [group.outcome(o) for o in range(3)] == [group.outcome(0)] * 3


def test_survivors_have_a_new_leader_before_the_lost_pod_is_back(tmp_path: Path) -> None:
    with running(tmp_path, 3) as group:
        leader = group.wait_attempt(1)["leader"]["ordinal"]
        began = time.monotonic()
        kill(group.agents[leader].pid)
        group.wait_exit(leader)

        def gathered() -> dict[str, Any] | None:
            status = group.status()
            ready = [member["ordinal"] for member in status.get("members", []) if member["state"] == "idle"]
            return status if len(ready) == 2 else None

        status = wait_until("a leader with both survivors", gathered, timeout=90.0, detail=group.logs)
        print("survivors were ready after %.3f s" % (time.monotonic() - began))
        assert (status["leader"]["ordinal"] != leader, status["waitingFor"]) == (True, [leader])
        pages = [group.status(ordinal) for ordinal in range(3) if ordinal != leader]
        assert [page["leader"]["ordinal"] for page in pages] == [status["leader"]["ordinal"]] * 2
        group.start(leader)
        wait_later(group, 1)
