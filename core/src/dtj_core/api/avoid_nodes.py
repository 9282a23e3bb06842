"""`spec.restart.avoidNodes`: when pods are recreated away from a node."""

from __future__ import annotations

from pydantic import Field

from dtj_core.api.base_model import INT32_MAX, Model

AVOIDED_NODES = 64


class AvoidNodes(Model):
    """Nodes on which the training fails again and again.

    The pods on such a node are recreated on other nodes, which costs nothing of the restart budget.
    The node is allowed again where no other node has room, and once the time is over.
    """

    after_failures: int = Field(default=3, ge=0, le=5)
    """Number of attempts that must break on one node within forSeconds, and on no other node. Only
    failures count that a node can cause: no lost pods or connections, no lack of memory, no errors
    of the script before its first step. 0: only a failure whose rule has the action
    RestartElsewhere makes a node avoided."""
    for_seconds: int = Field(default=3600, ge=60, le=INT32_MAX)
    """Seconds for which a node is avoided."""
    max_nodes: int | None = Field(default=None, ge=0, le=AVOIDED_NODES)
    """Number of nodes that may be avoided at the same time. Default: a quarter of the nodes that the
    job's pods are on, at least 1. 0: no node is ever avoided."""
