"""The links between ranks: of a node, between nodes, between racks; and the slowest of them on a ring. Pure.

A message of S bytes takes latency + S / bandwidth: Hockney, "The communication challenge for MPP", Parallel
Computing 20 (1994), known as the alpha-beta model.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dtj.errors import InputError
from dtj.simulate import units

Placement = Literal["contiguous", "interleaved"]


@dataclass(frozen=True, slots=True)
class Link:
    """One link in one direction."""

    latency: float
    """Seconds of a message without bytes, software included (alpha)."""
    bandwidth: float
    """Bytes per second (1 / beta)."""

    def shared(self, flows: float) -> Link:
        """Returns the link that each of several flows at the same time has."""
        return Link(self.latency, self.bandwidth / flows)

    def seconds(self, size: float) -> float:
        """Returns the seconds of one message of `size` bytes."""
        return self.latency + size / self.bandwidth


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """Where ranks are, and what joins them."""

    node: Link
    """Between two nodes of a rack: of a node's NICs together."""
    local: Link
    """Between two ranks of a node."""
    rack: Link
    """Between nodes of two racks, before oversubscription."""
    ranks_per_node: int = 1
    nodes_per_rack: int | None = None
    """None: all nodes are in one rack."""
    oversubscription: float = 1.0
    """Bytes per second that a rack's nodes can send, over those that its uplinks carry."""
    placement: Placement = "contiguous"
    """contiguous: neighbours on the ring share a node where possible, so that one flow leaves each node.

    interleaved: neighbours are on different nodes, so that the flows of all ranks of a node share its NIC.
    """

    def nodes(self, ranks: int) -> int:
        """Returns the nodes that so many ranks need."""
        return math.ceil(ranks / self.ranks_per_node)

    def between_nodes(self, ranks: int, flows: int = 1) -> list[Link]:
        """Returns the links that a ring over the nodes crosses, as each of `flows` flows of a node has them.

        Between racks a flow has what remains of its node's bandwidth while all nodes of the rack send.
        """
        nodes = self.nodes(ranks)
        found = [self.node.shared(flows)] if nodes > 1 else []
        if self.nodes_per_rack is not None and nodes > self.nodes_per_rack:
            found.append(self.rack.shared(flows * self.oversubscription))
        return found

    def ring(self, ranks: int) -> list[Link]:
        """Returns the kinds of links that a ring over all ranks crosses; the slowest one sets its pace."""
        if self.nodes(ranks) > 1 and self.placement == "interleaved":
            return self.between_nodes(ranks, flows=min(self.ranks_per_node, ranks))
        within = [self.local] if self.ranks_per_node > 1 and ranks > 1 else []
        return [*within, *self.between_nodes(ranks)]


def parse_link(text: str, flag: str) -> Link:
    """Parses `25Gbit/s,50us`, or reads the file that `python -m dtj_trainer.measure link` wrote.

    Raises InputError that names the flag.
    """
    if text.endswith(".json"):
        return _read(Path(text), flag)
    bandwidth, comma, latency = text.partition(",")
    if not comma:
        raise InputError(
            f"{flag} {text}: write bandwidth and latency, such as 25Gbit/s,50us, or the link.json that "
            "`python -m dtj_trainer.measure link` writes"
        )
    return Link(units.seconds(latency, flag), units.rate(bandwidth, flag))


def _read(path: Path, flag: str) -> Link:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        link = Link(float(found["latency_seconds"]), float(found["bytes_per_second"]))
    except OSError as error:
        raise InputError(f"{flag} {path}: {error.strerror}; write the path of a link.json") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{flag} {path}: write latency_seconds and bytes_per_second into it as numbers") from error
    if not (0 <= link.latency < math.inf and 0 < link.bandwidth < math.inf):
        raise InputError(f"{flag} {path}: write latency_seconds of 0 or more, and bytes_per_second above 0")
    return link
