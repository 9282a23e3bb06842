"""The spares of a simulated world, and the sizes that its group may have."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from dtj_agent.group.group_spec import ElasticLimits
from dtj_contract.operator_message import GroupSize, OperatorMessage
from tests.unit.agent.simulated_faults import FAULT_SECONDS

if TYPE_CHECKING:
    from tests.unit.agent.simulator import World


class Sizes:
    """Some worlds have spares, some are elastic, and somebody scales these.

    The choices come from a stream of their own: they change no other choice of a seed.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        rng = self._rng = random.Random(f"sizes of {world.seed}")
        # More than half of the pods are members, so that a majority knows each attempt. A smaller group
        # that is cut off may end its job while the others continue: see "Not covered" in decision 0016.
        spares = min(rng.choice((0, 0, 0, 1, 2)), (world.replicas - 1) // 2)
        self._most = world.replicas - spares
        smallest = min(self._most, world.replicas // 2 + 1)
        self._least = rng.randint(smallest, self._most) if rng.random() < 0.5 else self._most
        elastic = None
        if self._least < self._most:
            elastic = ElasticLimits(self._least, self._most, rng.choice((0.0, 2.0, 10.0)))
            # Without a lease a smaller size makes a smaller majority. In a cluster the StatefulSet then
            # has no other pods, but here they would stay.
            for generation in range(1, rng.randint(1, 4) if world.has_volume else 1):
                world.after(rng.uniform(0.0, FAULT_SECONDS), lambda at=generation: self._scale(at))  # type: ignore[misc]
        world.spec = world.spec._replace(
            replicas=self._most, spares=spares, elastic=elastic, has_volume=world.has_volume, grace=3.0
        )
        self.are_partial = self._least < world.replicas
        """Whether an attempt may have fewer members than there are pods."""
        self.are_scaled = elastic is not None and world.has_volume
        self._of_attempt: dict[int, int] = {}

    def _scale(self, generation: int) -> None:
        """Hands a size to every agent that coordinates."""
        message = OperatorMessage(size=GroupSize(generation, self._rng.randint(self._least, self._most)))
        self._world.log_line(f"the operator hands over {message.size}")
        for pod in self._world.everyone:
            if pod.alive and pod.coordinator is not None:
                self._world.coordinator_does(pod, pod.coordinator.handed_over(message, self._world.now(pod)))

    def started(self, attempt: int, ranks: list[tuple[int, int]]) -> bool:
        """Notes the (ordinal, node rank) pairs of an attempt; returns whether they are as they should be."""
        self._of_attempt[attempt] = len(ranks)
        in_order = [rank for _, rank in sorted(ranks)] == list(range(len(ranks)))
        return in_order and self._least <= len(ranks) <= self._most

    def workers(self, attempt: int) -> int:
        """Returns the number of ranks of an attempt."""
        return self._of_attempt.get(attempt, -1) * self._world.processes
