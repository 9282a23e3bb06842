"""Adds nodes that a pod must not run on to the affinity that its user wrote.

A node is named by the field metadata.name. The label kubernetes.io/hostname may differ from the
name on some clouds, and the operator need not read nodes to exclude them.
"""

from __future__ import annotations

from collections.abc import Sequence

from dtj_core.plan.model import Object

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NODE_NAME = "metadata.name"


def exclude_nodes(affinity: Object | None, nodes: Sequence[str]) -> Object:
    """Returns `affinity` so that it also excludes these nodes.

    The terms of a node selector are alternatives, so each of them must exclude the nodes. An empty
    term matches no node, and stays empty.
    """
    merged = dict(affinity or {})
    if not nodes:
        return merged
    # The API server allows one name in each requirement; all requirements of a term must hold.
    excluded = [{"key": NODE_NAME, "operator": "NotIn", "values": [node]} for node in sorted(nodes)]
    node_affinity = dict(merged.get("nodeAffinity") or {})
    required = dict(node_affinity.get(REQUIRED) or {})
    terms = [_exclude(term, excluded) for term in required.get("nodeSelectorTerms") or ()]
    node_affinity[REQUIRED] = required | {"nodeSelectorTerms": terms or [{"matchFields": excluded}]}
    return merged | {"nodeAffinity": node_affinity}


def _exclude(term: Object, excluded: list[Object]) -> Object:
    if not term.get("matchExpressions") and not term.get("matchFields"):
        return term
    return term | {"matchFields": [*(term.get("matchFields") or ()), *excluded]}
