"""A detector of sick nodes in a simulated world: right about one node, wrong about all, and gone again.

Half of the worlds have one. Its draws are its own, so that the others stay as they are without it.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from dtj_core.plan import sick_nodes
from dtj_core.plan.model import Object
from dtj_core.plan.node_signs import SickNodeSettings
from dtj_operator.kube.resources import NODE
from tests.unit.operator.simulated_faults import FAULT_SECONDS

if TYPE_CHECKING:
    from tests.unit.operator.simulator import World

LONG_SECONDS = 500.0
"""A pause between two moves that is longer than a world's faults, although clocks differ by three minutes."""
SKEW_SECONDS = 185.0
XID = {"type": "XidCriticalError", "status": "True", "reason": "Xid79", "message": "fell off the bus"}


class Detector:
    def __init__(self, world: World) -> None:
        rng = self._rng = random.Random(f"{world.seed} detector")
        self._world = world
        self._moved: dict[str, float] = {}
        """When each job last moved, by uid."""
        self.moves = 0
        if rng.random() < 0.5:
            return
        rules = SickNodeSettings(
            interval_seconds=rng.choice((1.0, 20.0)), job_interval_seconds=rng.choice((1.0, LONG_SECONDS))
        )
        world.settings = replace(world.settings, sick_nodes=rules)
        for node in world.cluster.nodes:
            world.api.create(NODE, {"metadata": {"name": node.name}, "spec": {}, "status": {}})
        for _ in range(rng.randrange(1, 6)):
            world.after(rng.uniform(0.0, FAULT_SECONDS), self._strike)

    def stop(self) -> None:
        for node in self._world.cluster.nodes:
            self._heal(node.name)

    def _strike(self) -> None:
        if not self._world.faults.active:
            return
        nodes = self._world.cluster.nodes
        for node in self._rng.sample(nodes, self._rng.choice((1, 1, 2, len(nodes)))):
            is_cordon = self._rng.random() < 0.3
            self._world.log_line(f"fault: node {node.name} is {'cordoned' if is_cordon else 'called sick'}")
            self._write(node.name, unschedulable=is_cordon, conditions=[] if is_cordon else [XID])
            self._world.after(self._rng.uniform(2.0, 120.0), partial(self._heal, node.name))

    def _heal(self, name: str) -> None:
        self._write(name, unschedulable=False, conditions=[])

    def _write(self, name: str, *, unschedulable: bool, conditions: list[Object]) -> None:
        next(node for node in self._world.cluster.nodes if node.name == name).cordoned = unschedulable
        changed = {"spec": {"unschedulable": unschedulable}, "status": {"conditions": conditions}}
        self._world.api.replace(NODE, name, lambda node: {**node, **changed})

    def status_written(self, uid: str, old: Object, new: Object) -> None:
        """Checks that no job moves again too soon."""
        began = set(sick_nodes.moves(new)) - set(sick_nodes.moves(old))
        if not began:
            return
        self.moves += 1
        now, rules = self._world.clock(), self._world.settings.sick_nodes
        if rules is None:
            self._world.fail("a job leaves a sick node, and nobody watches nodes")
        last = self._moved.get(uid)
        if last is not None and now - last < rules.job_interval_seconds - SKEW_SECONDS:
            self._world.fail(f"the job leaves {began} although it moved {now - last:.0f} s ago")
        self._moved[uid] = now
