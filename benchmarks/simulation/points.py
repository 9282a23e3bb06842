"""The points at which steps are measured and modelled, and the model of one of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from dtj.simulate.model import Setup, step
from dtj.simulate.network import Link, Network, Placement
from dtj.simulate.profile import parse

LINKS = (200, 1000)
"""Mbit/s"""


@dataclass(frozen=True, slots=True)
class Point:
    """Ranks on two nodes, and the link between the nodes."""

    mbit: int
    ranks: int
    placement: Placement = "contiguous"

    @property
    def name(self) -> str:
        """The point in words."""
        ranks = f"{self.ranks} rank{'' if self.ranks == 1 else 's'}"
        return f"{self.mbit} Mbit/s, {ranks}" + (", interleaved" if self.placement == "interleaved" else "")

    @property
    def ranks_per_node(self) -> int:
        """Ranks on each of the two nodes; the single rank is on one."""
        return max(1, self.ranks // 2)


POINTS = [
    *(Point(mbit, ranks) for mbit in LINKS for ranks in (1, 2, 4, 8)),
    *(Point(mbit, 4, "interleaved") for mbit in LINKS),
]


def modelled(point: Point, profile: dict[str, Any], node: dict[str, Any], local: dict[str, Any]) -> float:
    """Returns the modelled seconds of a step, from what one rank and two ranks have measured.

    Args:
        point: What is modelled.
        profile: The content of profile.json.
        node: The content of a link.json between the nodes.
        local: The same between two ranks of a node.
    """
    between = _link(node)
    network = Network(
        node=between,
        local=_link(local),
        rack=between,
        ranks_per_node=point.ranks_per_node,
        placement=point.placement,
    )
    return step(Setup(profile=parse(json.dumps(profile), "of one rank"), network=network), point.ranks).seconds


def _link(found: dict[str, Any]) -> Link:
    return Link(found["latency_seconds"], found["bytes_per_second"])
