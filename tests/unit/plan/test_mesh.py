"""Proxies of service meshes: the condition names what keeps them out, where the group does not form."""

from __future__ import annotations

import pytest

from dtj_core.plan import plan
from dtj_core.plan.model import Object, Observed
from dtj_core.plan.times import rfc3339
from tests.unit.plan.objects import NOW, SETTINGS, agent, condition, container, pod, service, started

FORMING = agent(attempt=0, phase="Rendezvous", startTime=None)


def message(pods: tuple[Object, ...], *, later: float = 40.0, **seen: object) -> str:
    """Returns the message of condition Running of a job whose pods run and which has not started."""
    stored, child = started()
    observed = Observed(stateful_set=child, service=service(), pods=pods, **seen)  # type: ignore[arg-type]
    found = plan(stored, observed, NOW + later, SETTINGS)
    return str(condition(found.status, "Running")["message"])


def pods(proxy: str = "", *, native: bool = False) -> tuple[Object, ...]:
    """Returns running pods, whose proxy is the first container or a native sidecar."""
    beside = [container(proxy)] if proxy else []
    where = {"initContainerStatuses": beside} if native else {}
    containers = [*([] if native else beside), container()]
    return tuple(
        pod(
            ordinal,
            phase="Running",
            podIP=f"10.0.0.{ordinal}",
            startTime=rfc3339(NOW),
            containerStatuses=containers,
            **where,
        )
        for ordinal in range(3)
    )


@pytest.mark.parametrize(
    ("proxy", "cure"),
    {
        "istio-proxy": 'the label sidecar.istio.io/inject: "false" to template.metadata',
        "linkerd-proxy": "the annotation linkerd.io/inject: disabled to template.metadata",
        "kuma-sidecar": "the label kuma.io/sidecar-injection: disabled to template.metadata",
        "consul-dataplane": 'the annotation consul.hashicorp.com/connect-inject: "false" to template.metadata',
    }.items(),
)
@pytest.mark.parametrize("native", [False, True], ids=["container", "native sidecar"])
def test_mesh_is_named_where_pods_run_and_form_no_group(proxy: str, cure: str, native: bool) -> None:
    found = message(pods(proxy, native=native), agent=FORMING)
    assert f"the pods have {proxy} of a service mesh" in found
    assert cure in found


def test_mesh_is_named_where_no_agent_answers() -> None:
    seen = {"agent_silent_seconds": 65.0, "agent_silence": "unreachable"}
    assert "istio-proxy of a service mesh" in message(pods("istio-proxy"), later=70.0, **seen)
    assert "mesh" not in message(pods(), later=70.0, **seen)


def test_no_mesh_is_blamed_for_the_first_seconds_or_without_a_proxy() -> None:
    assert "mesh" not in message(pods("istio-proxy"), later=10.0, agent=FORMING)
    assert "mesh" not in message(pods("vault-agent"), agent=FORMING)


def test_group_that_runs_under_a_mesh_is_left_alone() -> None:
    assert message(pods("istio-proxy"), agent=agent()) == "attempt 1 is running 3 ranks on 3 pods"
