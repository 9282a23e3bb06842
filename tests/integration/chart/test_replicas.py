"""The chart's replicas, and their rights on Leases."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtj_operator import rbac
from dtj_operator.leader.claims import claim_name
from dtj_operator.leader.election import Timing
from hack.cluster.versions import KUBERNETES
from tests.integration.chart.kit import (
    CHART,
    NAMESPACE,
    Object,
    arguments_of,
    helm,
    lease_roles,
    of_kind,
    pod,
    render,
    rights,
    values,
)


def test_rollout_has_a_new_standby_before_an_old_replica_ends() -> None:
    [deployment] = of_kind(render(), "Deployment")
    assert deployment["spec"]["replicas"] == 2
    rolling = {"maxSurge": 1, "maxUnavailable": 0}
    assert deployment["spec"]["strategy"] == {"type": "RollingUpdate", "rollingUpdate": rolling}


def test_without_leader_election_there_is_one_replica_that_ends_before_the_next() -> None:
    [deployment] = of_kind(render({"replicas": 1, "leaderElection.enabled": False}), "Deployment")
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    two = values({"leaderElection.enabled": False})
    done = helm("template", "dtj", str(CHART), "--kube-version", f"v{KUBERNETES}", *two)
    assert done.returncode != 0
    assert "replicas must be 1" in done.stderr


@pytest.mark.parametrize(("replicas", "budgets"), [(1, 0), (2, 1), (3, 1)])
def test_disruption_budget_exists_where_another_replica_can_take_over(replicas: int, budgets: int) -> None:
    documents = render({"replicas": replicas})
    found = of_kind(documents, "PodDisruptionBudget")
    assert len(found) == budgets
    [deployment] = of_kind(documents, "Deployment")
    for budget in found:
        assert budget["spec"]["maxUnavailable"] == 1
        assert budget["spec"]["selector"] == deployment["spec"]["selector"]
    assert of_kind(render({"replicas": replicas, "podDisruptionBudget.enabled": False}), "PodDisruptionBudget") == []


def test_replicas_are_spread_over_nodes_and_zones_unless_the_values_decide() -> None:
    documents = render()
    found = pod(documents)["topologySpreadConstraints"]
    assert [each["topologyKey"] for each in found] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    assert {each["whenUnsatisfiable"] for each in found} == {"ScheduleAnyway"}, "one node is enough"
    [deployment] = of_kind(documents, "Deployment")
    assert all(each["labelSelector"] == deployment["spec"]["selector"] for each in found)
    own = [{"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}]
    assert pod(render({"topologySpreadConstraints": own}))["topologySpreadConstraints"] == own


@pytest.mark.parametrize("chosen", [{}, {"watchNamespaces": ["team-a"]}], ids=str)
def test_rights_on_leases_are_those_of_the_election_and_of_one_claim(chosen: Object, tmp_path: Path) -> None:
    documents = render(chosen)
    election, claims = lease_roles(documents)
    assert election["metadata"]["namespace"] == NAMESPACE
    assert rights(election["rules"]) == rights(rbac.rules(rbac.ELECTION_RULES))
    assert claims["metadata"]["namespace"] == "kube-system"
    options = arguments_of(documents, tmp_path)
    assert claims["rules"] == rbac.claim_rules(claim_name(f"{options.lease_namespace}/{options.lease_name}"))
    bindings = {(b["metadata"]["namespace"], b["roleRef"]["name"]): b for b in of_kind(documents, "RoleBinding")}
    for role in (election, claims):
        binding = bindings[role["metadata"]["namespace"], role["metadata"]["name"]]
        assert binding["roleRef"]["kind"] == "Role"
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "dtj-operator", "namespace": NAMESPACE}]


def test_rights_on_leases_go_with_what_needs_them() -> None:
    assert lease_roles(render({"replicas": 1, "leaderElection.enabled": False})) == []
    assert lease_roles(render({"rbac.create": False})) == []
    [election] = lease_roles(render({"leaderElection.claimsNamespace": "none"}))
    assert election["metadata"]["namespace"] == NAMESPACE


def test_release_without_rights_on_roles_creates_none_but_those_of_helm_test() -> None:
    everything = {"rbac.create": False, "kueue.enabled": True, "metrics.authentication.enabled": True}
    roles = [d for d in render(everything) if d["apiVersion"].startswith("rbac.")]
    assert [d["kind"] for d in roles if "helm.sh/hook" not in d["metadata"].get("annotations", {})] == []


def test_leader_election_values_reach_the_operator(tmp_path: Path) -> None:
    options = arguments_of(render(release="blue"), tmp_path)
    assert options.leader_election
    assert (options.lease_namespace, options.lease_name) == (NAMESPACE, "blue-dtj-operator")
    assert (options.timing, options.claims_namespace) == (Timing(), "kube-system")
    chosen = {
        "leaderElection.leaseDurationSeconds": 30,
        "leaderElection.renewDeadlineSeconds": 20,
        "leaderElection.retryPeriodSeconds": 4.5,
        "leaderElection.claimsNamespace": "none",
    }
    options = arguments_of(render(chosen), tmp_path)
    assert options.timing == Timing(lease_seconds=30, renew_seconds=20, retry_seconds=4.5)
    assert options.claims_namespace is None
    assert not arguments_of(render({"replicas": 1, "leaderElection.enabled": False}), tmp_path).leader_election
