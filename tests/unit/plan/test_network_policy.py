"""The NetworkPolicy of a job: whom it admits, and when it is applied again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dtj_contract import names
from dtj_core.plan import plan
from dtj_core.plan.model import Annotate, Apply, Observed
from tests.unit.plan.objects import (
    NOW,
    SETTINGS,
    UID,
    World,
    agent,
    job,
    pods,
    service,
    stateful_set,
    template,
)

OPERATOR: Any = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "dtj-system"}}}
MONITORING: Any = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
WITH_POLICY = replace(SETTINGS, network_peers=(OPERATOR,))
MORE_PEERS = replace(SETTINGS, network_peers=(OPERATOR, MONITORING))


def bodies(settings: Any, **spec: Any) -> list[Any]:
    return [a.body for a in plan(job(**spec), Observed(), NOW, settings).actions if isinstance(a, Apply)]


def updates(settings: Any, *, started_with: Any = WITH_POLICY, edited: bool = False) -> Any:
    """Returns the actions for a running job under these settings."""
    first = plan(job(), Observed(), NOW, started_with)
    child = stateful_set(first)
    if edited:
        child = {**child, "spec": child["spec"] | {"replicas": 1}}
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=agent())
    return plan(job(first.status), seen, NOW, settings).actions


def test_policy_precedes_the_pods_and_has_owner_and_labels_of_its_job() -> None:
    made = bodies(WITH_POLICY)
    assert [body["kind"] for body in made] == ["Secret", "NetworkPolicy", "Service", "StatefulSet"]
    assert made[1]["metadata"]["name"] == "digits-dtj-agent"
    assert [owner["uid"] for owner in made[1]["metadata"]["ownerReferences"]] == [UID]
    assert made[1]["metadata"]["labels"] == made[0]["metadata"]["labels"]


def test_policy_admits_the_jobs_pods_to_all_ports_and_peers_to_the_agents_port() -> None:
    own = {"matchLabels": {names.LABEL_JOB: "digits"}}
    assert bodies(MORE_PEERS)[1]["spec"] == {
        "podSelector": own,
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": [{"podSelector": own}]},
            {"from": [OPERATOR, MONITORING], "ports": [{"port": 29400, "protocol": "TCP"}]},
        ],
    }


def test_every_pod_of_the_job_is_selected() -> None:
    _, policy, _, child = bodies(WITH_POLICY, spares=1)
    selected = policy["spec"]["podSelector"]["matchLabels"].items()
    assert selected <= child["spec"]["template"]["metadata"]["labels"].items()


def test_no_peers_are_not_everybody() -> None:
    policy = bodies(replace(SETTINGS, network_peers=()))[1]
    assert len(policy["spec"]["ingress"]) == 1, "a rule with an empty `from` admits all"


def test_job_on_the_nodes_network_and_an_installation_without_peers_have_no_policy() -> None:
    for settings, spec in (
        (SETTINGS, {}),
        (WITH_POLICY, {"network": {"hostNetwork": True}}),
        (WITH_POLICY, template({"hostNetwork": True})),
    ):
        made = bodies(settings, **spec)
        assert "NetworkPolicy" not in [body["kind"] for body in made]
        assert names.ANNOTATION_NETWORK_POLICY not in made[-1]["metadata"]["annotations"]


def test_running_job_gets_new_peers_once() -> None:
    apply, note = updates(MORE_PEERS)
    assert isinstance(apply, Apply)
    assert apply.body["spec"]["ingress"][1]["from"] == [OPERATOR, MONITORING]
    assert isinstance(note, Annotate)
    assert dict(note.annotations) == {
        name: value
        for name, value in bodies(MORE_PEERS)[-1]["metadata"]["annotations"].items()
        if name == names.ANNOTATION_NETWORK_POLICY
    }
    assert updates(WITH_POLICY) == ()
    assert updates(MORE_PEERS, started_with=MORE_PEERS) == ()


def test_running_job_is_neither_given_nor_refused_a_policy_by_an_upgrade() -> None:
    assert updates(WITH_POLICY, started_with=SETTINGS) == ()
    assert updates(SETTINGS, started_with=WITH_POLICY) == ()


def test_repair_of_the_set_states_no_policy_that_was_not_applied() -> None:
    for started_with in (SETTINGS, WITH_POLICY):
        before = bodies(started_with)[-1]["metadata"]["annotations"].get(names.ANNOTATION_NETWORK_POLICY)
        (repair,) = updates(MORE_PEERS, started_with=started_with, edited=True)
        assert repair.body["metadata"]["annotations"].get(names.ANNOTATION_NETWORK_POLICY) == before


def test_job_with_a_policy_costs_five_writes_until_its_pods_exist() -> None:
    world = World(job(), WITH_POLICY)
    world.settle(NOW)
    assert world.writes == ["apply Secret", "apply NetworkPolicy", "apply Service", "apply StatefulSet", "status"]
