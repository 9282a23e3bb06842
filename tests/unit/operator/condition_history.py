"""The history of the conditions in a simulated world: each change has a row, and none flaps without a cause."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dtj_core.plan.agent_silence import UNREACHABLE_SECONDS
from dtj_core.plan.conditions import is_finished
from dtj_core.plan.model import Object, Observed, Plan, Settings
from tests.unit.plan.transition_rows import known
from tests.unit.plan.transitions import changes

if TYPE_CHECKING:
    from tests.unit.operator.simulator import World

Planner = Callable[[Object, Observed, float, Settings], Plan]


class ConditionHistory:
    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: dict[int, str] = {}
        """By operator: what its last plan was made from."""
        self._left: dict[tuple[str, str], tuple[str, str]] = {}
        """By job and condition: the status that it left last, and what was seen then."""
        self.reached: set[str] = set()
        """The changes of conditions, as the table of transitions writes them."""

    def recorded(self, operator: int, planner: Planner) -> Planner:
        """Returns the planner of an operator, which also records what it is given."""

        def plan(job: Object, observed: Observed, now: float, settings: Settings) -> Plan:
            self._seen[operator] = digest(job, observed)
            return planner(job, observed, now, settings)

        return plan

    def written(self, uid: str, old: Object, new: Object, operator: int) -> None:
        """Checks the conditions of a status that is written in place of another."""
        for change in changes(old, new):
            self.reached.add(change)
            if change not in known():
                self._world.fail(f"tests/unit/plan/transition_rows.py has no row for: {change}")
            kind, before, after, _ = change.split()
            status, seen = self._left.get((uid, kind), ("", ""))
            now = self._seen.get(operator, "")
            # A deadline ends a job without anything else to see, and an end is final.
            if status == after and seen == now and not is_finished(new):
                self._world.fail(f"condition {kind} is {after} again, and nothing else was observed")
            self._left[uid, kind] = before, now


def digest(job: Object, observed: Observed) -> str:
    """Returns all that a plan is made from, except for the time and what was written before."""
    agent = observed.agent_silent_seconds >= UNREACHABLE_SECONDS, observed.agent, observed.agent_asked
    children: tuple[Any, ...] = observed.stateful_set, observed.service, observed.pods
    return json.dumps([job["spec"], children, agent, observed.rejection, observed.refusal], sort_keys=True)
