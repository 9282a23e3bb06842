"""Restart rules that move a simulated pod to another node, and the operator that replaces the pod."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING

from dtj_agent.group import restart_rules
from dtj_agent.group.coordinator import Coordinator
from dtj_contract import names
from tests.unit.agent import simulated_faults as faults
from tests.unit.agent.simulated import Pod

if TYPE_CHECKING:
    from tests.unit.agent.simulator import World

RULE = {"exitCodes": [1, 137, 139], "action": names.ACTION_RESTART_ELSEWHERE}


class Moves:
    """Some worlds have a rule. The choices come from a stream of their own, as those of `Sizes` do."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(f"moves of {world.seed}")
        self.are_possible = self._rng.random() < (0.8 if world.spec.spares else 0.3)
        self.spared = 0
        """Attempts that a spare has joined in place of a pod that was to move."""
        self._seen: set[tuple[int, int]] = set()
        self._moving: dict[Coordinator, tuple[int, str, float]] = {}
        """The ordinal and incarnation that each coordinator's newest failure moves, and until when it waits."""
        if self.are_possible:
            world.spec = world.spec._replace(rules=restart_rules.read([RULE])[0])

    def look(self, pod: Pod) -> None:
        """Lets the operator replace the pod that the newest failure of the coordinator in `pod` moves."""
        failures = pod.coordinator.history.failures if self.are_possible and pod.coordinator is not None else []
        newest = failures[-1] if failures else {}
        key = newest.get("attempt", 0), newest.get("ordinal", -1)
        if newest.get("action") != names.ACTION_RESTART_ELSEWHERE or key in self._seen:
            return
        self._seen.add(key)
        assert pod.coordinator is not None
        peer = pod.coordinator.peers.get(key[1])
        if peer is None or not pod.coordinator.roster.is_moving(peer):
            return  # another coordinator has decided this
        self._moving[pod.coordinator] = peer.ordinal, peer.incarnation, self._world.time + names.ELSEWHERE_SECONDS
        # Some operators are too late, and some never come.
        moved = self._world.pods[peer.ordinal]
        self._world.after(self._rng.choice((0.1, 2.0, 20.0, 50.0)), partial(self._replace, moved, moved.life))

    def _replace(self, pod: Pod, life: int) -> None:
        world = self._world
        if world.time >= faults.FAULT_SECONDS or pod.life != life or not pod.alive or pod.leaving or pod.is_twin:
            return
        if faults.others_know(world, pod):
            faults.note(world, "leave", pod)
            pod.leaving = pod.election.is_leaving = True
            world.member_does(pod, pod.member.terminate(world.now(pod)))

    def started(self, coordinator: Coordinator, members: list[int]) -> bool:
        """Returns whether an attempt with `members` waits as it should for a pod that is to move."""
        ordinal, incarnation, until = self._moving.pop(coordinator, (-1, "", 0.0))
        peer = coordinator.peers.get(ordinal)
        if peer is None or peer.incarnation != incarnation or self._world.time >= until - 0.001:
            return True
        self.spared += ordinal not in members
        return ordinal not in members and ordinal != coordinator.ordinal
