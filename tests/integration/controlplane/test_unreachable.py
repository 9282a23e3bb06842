"""Agents that fall silent, beside a real API server: the condition comes after the silence, and goes with an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

from hack.cluster.controlplane import ControlPlane
from tests.integration.controlplane.hasty import UNREACHABLE_SECONDS
from tests.integration.controlplane.history import History
from tests.integration.controlplane.kubelet import Kubelet
from tests.integration.controlplane.support import Agents, Objects, Operator, running, wait_until
from tests.integration.controlplane.test_listening import requests

HASTY = ("-m", "tests.integration.controlplane.hasty")


@pytest.fixture
def silent_agents(agents: Agents) -> Iterator[Agents]:
    """Returns agents that may fall silent, and lets them answer again after the test, so that they end."""
    yield agents
    agents.speak.set()


def condition(objects: Objects, kind: str) -> Any:
    """Returns the condition, true or not; None if there is none."""
    conditions = (objects.get("distributedtrainingjobs", "j").get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == kind), None)


def seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()


@pytest.mark.timeout(300)
def test_agent_unreachable_appears_after_the_silence_and_goes_with_the_answer(
    plane: ControlPlane,
    namespace: str,
    start_operator: Callable[..., Operator],
    submit: Callable[..., Any],
    objects: Objects,
    kubelet: Kubelet,
    silent_agents: Agents,
) -> None:
    agents = silent_agents
    operator = start_operator(program=HASTY).ready()
    uid = submit()["metadata"]["uid"]
    agents.statuses[uid] = running()
    wait_until("the job runs", lambda: objects.condition("j", "Running"))
    assert condition(objects, "AgentUnreachable") is None
    with History(plane, namespace) as history:
        agents.speak.clear()
        found = wait_until("the silence is reported", lambda: condition(objects, "AgentUnreachable"))
        assert (found["status"], found["reason"]) == ("True", "AgentUnreachable")
        assert "NetworkPolicy" in found["message"], "a cure is named"
        since = seconds(found["message"].split("since ")[1].split(": ")[0])
        # Times in the status are whole seconds.
        assert seconds(found["lastTransitionTime"]) - since >= UNREACHABLE_SECONDS - 1, "no sooner than the silence"
        assert objects.condition("j", "Running"), "the training continues, as far as anybody knows"
        operator.kill()
        again = start_operator(program=HASTY).ready()
        wait_until("the next operator has asked", lambda: requests(again, "unreachable") >= 1)
        assert condition(objects, "AgentUnreachable") == found, "a restart of the operator forgets nothing"
        agents.speak.set()
        wait_until("the condition goes with the answer", lambda: condition(objects, "AgentUnreachable") is None)
        assert objects.condition("j", "Running")
    shown = [c["type"] for conditions in history.statuses["j"] for c in conditions]
    assert "AgentUnreachable" in shown, "the history has it"
    assert history.flaps() in ([], ["j: AgentUnreachable absent, True, absent"])


@pytest.mark.timeout(300)
def test_agents_with_another_key_have_a_reason_of_their_own(
    start_operator: Callable[..., Operator],
    submit: Callable[..., Any],
    objects: Objects,
    kubelet: Kubelet,
    agents: Agents,
) -> None:
    """An agent that answers 401 is there: the cure is another one."""
    start_operator(program=HASTY).ready()
    uid = submit()["metadata"]["uid"]
    found = wait_until("the refusal is reported", lambda: condition(objects, "AgentUnreachable"))
    assert found["reason"] == "AgentRefused"
    assert "suspend and resume the job" in found["message"]
    agents.statuses[uid] = running()
    wait_until("the job runs", lambda: objects.condition("j", "Running"))
    assert condition(objects, "AgentUnreachable") is None
