"""Seconds of one collective over all ranks, by the alpha-beta model. Pure.

Formulae: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19
(2005); Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69 (2009).
The time of the additions is in the measured latency and bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence

from dtj.simulate.network import Link, Network


def ring_pass(size: float, members: int, links: Sequence[Link]) -> float:
    """Returns the seconds of a ring reduce-scatter or all-gather: (n-1) rounds, in each a message of size/n bytes.

    A round takes as long as its slowest message.
    """
    if members < 2:
        return 0.0
    return (members - 1) * max((link.seconds(size / members) for link in links), default=0.0)


def all_reduce(size: float, ranks: int, network: Network) -> float:
    """Returns the seconds of a ring all-reduce: 2(n-1)/n * size/bandwidth + 2(n-1) * latency on one kind of link."""
    return 2 * ring_pass(size, ranks, network.ring(ranks))


def shard(size: float, ranks: int, network: Network) -> float:
    """Returns the seconds of a reduce-scatter of gradients, or of an all-gather of as many bytes of weights."""
    return ring_pass(size, ranks, network.ring(ranks))


def hierarchical(size: float, ranks: int, network: Network) -> float:
    """Returns the seconds of an all-reduce in three parts: within nodes, between nodes, within nodes.

    The parts are a reduce-scatter, an all-reduce and an all-gather. A node sends each byte of the sum once over its
    NIC, by one rank or in equal parts by all of its ranks.
    """
    members = min(network.ranks_per_node, ranks)
    within = 2 * ring_pass(size, members, [network.local])
    return within + 2 * ring_pass(size, network.nodes(ranks), network.between_nodes(ranks))
