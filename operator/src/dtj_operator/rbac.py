"""The operator's RBAC rules: exactly the calls that it makes.

Tests hold the code and the chart's roles to this table.

With --namespace a Role in each namespace is enough, and a ClusterRole that reads runtimes, without
which the operator serves the jobs that refer to none: no rights on CRDs, namespaces or finalizers
(our owner references don't block their owner's deletion), and none on nodes but to read them.
In the namespaces that they cover, the rules are nevertheless as powerful as an administrator's:
whoever may create pods may mount any Secret and use any service account there.
"""

from __future__ import annotations

from collections.abc import Mapping

from dtj_contract import names

# (API group, resource) -> verbs. Server-side apply is `patch`, and `create` where the object may
# not be there yet.
RULES: dict[tuple[str, str], tuple[str, ...]] = {
    # get: whether a job is still as it was planned on; delete: ttlSecondsAfterFinished.
    (names.GROUP, names.PLURAL): ("get", "list", "watch", "delete"),
    (names.GROUP, names.PLURAL + "/status"): ("patch",),
    ("apps", "statefulsets"): ("get", "list", "watch", "create", "patch", "delete"),
    # get: where an object of somebody else has a child's name.
    ("", "services"): ("get", "list", "watch", "create", "patch"),
    ("", "pods"): ("list", "watch", "create", "delete"),  # create: dry runs only
    # A patch returns the object. An empty one shows whether it exists where a quota refuses to create it.
    ("", "secrets"): ("create", "patch"),
    ("networking.k8s.io", "networkpolicies"): ("create", "patch"),
    # checkpoint.volume.claimTemplate. get: whether the claim exists where a quota refuses to create it.
    ("", "persistentvolumeclaims"): ("get", "create"),
    ("events.k8s.io", "events"): ("create", "patch"),
}

# With --kueue=true.
KUEUE_RULES: dict[tuple[str, str], tuple[str, ...]] = {
    # get: what a Workload of a job's name is that no watch shows.
    ("kueue.x-k8s.io", "workloads"): ("get", "list", "watch", "create", "delete"),
    ("kueue.x-k8s.io", "workloads/status"): ("patch",),
}
# With --kueue=true, in the whole cluster: flavors have no namespace.
KUEUE_CLUSTER_RULES: dict[tuple[str, str], tuple[str, ...]] = {
    ("kueue.x-k8s.io", "resourceflavors"): ("get",),
}

# For spec.gang: podGroups.enabled of the chart.
POD_GROUP_RULES: dict[tuple[str, str], tuple[str, ...]] = {
    ("scheduling.x-k8s.io", "podgroups"): ("create", "patch"),
    ("scheduling.volcano.sh", "podgroups"): ("create", "patch"),
}

# Cluster-wide, also with --namespace: runtimes have no namespace.
RUNTIME_RULES: dict[tuple[str, str], tuple[str, ...]] = {
    (names.GROUP, names.RUNTIME_PLURAL): ("list", "watch"),
}

# With --sick-nodes, cluster-wide: nodes have no namespace. Without the right, jobs leave no node.
NODE_RULES: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "nodes"): ("list", "watch"),
}

# In the operator's own namespace, for the leader election.
ELECTION_RULES: dict[tuple[str, str], tuple[str, ...]] = {
    ("coordination.k8s.io", "leases"): ("get", "watch", "create", "update"),
}


# In the whole cluster, and only with --metrics-auth kubernetes: who sent a token, and whether they may get /metrics.
METRICS_RULES: dict[tuple[str, str], tuple[str, ...]] = {
    ("authentication.k8s.io", "tokenreviews"): ("create",),
    ("authorization.k8s.io", "subjectaccessreviews"): ("create",),
}


def claim_rules(name: str) -> list[dict[str, list[str]]]:
    """Returns the rules in the namespace of the claims: update one claim, `name`, and list all.

    RBAC can't restrict `create` and `list` to a name.
    """
    lease = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    return [
        {**lease, "verbs": ["list", "create"]},
        {**lease, "verbs": ["get", "update"], "resourceNames": [name]},
    ]


def rules(table: Mapping[tuple[str, str], tuple[str, ...]] = RULES) -> list[dict[str, list[str]]]:
    """Returns the table as the `rules` of a Role."""
    return [
        {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
        for (group, resource), verbs in table.items()
    ]
