"""The sick nodes of the cluster, as the store knows them, and the jobs that have pods on them."""

from __future__ import annotations

from collections.abc import Collection

from dtj_core.plan import sick_nodes
from dtj_core.plan.model import Object
from dtj_core.plan.node_signs import NodeHealth, SickNodeSettings
from dtj_operator.kube.cache.store import Key, Store
from dtj_operator.kube.resources import POD


def node_health(store: Store, pods: Collection[Object]) -> NodeHealth | None:
    """Returns the health of the nodes for a job with these pods; None if nodes are not watched.

    Where none of the pods is on a sick node, the answer costs next to nothing.
    """
    table = store.node_table()
    if table is None:
        return None
    sick = dict(table.sick)
    if not any(_node(pod) in sick for pod in pods):
        return NodeHealth(total=len(table), sick=sick)
    begun: dict[str, float] = {}
    for job in store.jobs():
        for node, time in sick_nodes.moves(job.get("status") or {}):
            begun[node] = max(time, begun.get(node, time))
    in_use = {_node(pod) for key in store.tables[POD].keys() for pod in store.pods(key)}  # noqa: SIM118
    return NodeHealth(total=len(table), sick=sick, in_use=frozenset(in_use & sick.keys()), begun=begun)


def jobs_on_sick_nodes(store: Store) -> set[Key]:
    """Returns the jobs with a pod on any sick node."""
    table = store.node_table()
    if table is None or not table.sick:
        return set()
    keys = store.tables[POD].keys()
    return {key for key in keys if any(_node(pod) in table.sick for pod in store.pods(key))}


def count_sick_nodes(store: Store, settings: SickNodeSettings | None, *, believed: bool) -> int:
    """Returns the number of nodes with a sign that is, or is not, believed."""
    health = node_health(store, ())
    if health is None:
        return 0
    sick = len(sick_nodes.believe(health, settings).messages)
    return sick if believed else len(health.sick) - sick


def _node(pod: Object) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")
