"""Each row of the table of status transitions, run through the planner."""

from __future__ import annotations

import pytest

from tests.unit.plan.objects import NOW
from tests.unit.plan.transition_rows import ROWS
from tests.unit.plan.transitions import Row


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_conditions_change_as_the_table_has_it(row: Row) -> None:
    world = row.state(**row.spec)
    world.changes.clear()
    row.cause(world)
    world.settle(NOW + row.seconds)
    assert world.changes == list(row.expected)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_state_is_steady_until_something_else_is_observed(row: Row) -> None:
    """Checks that the same observation, seen again later, changes no condition."""
    world = row.state(**row.spec)
    row.cause(world)
    world.settle(NOW + row.seconds)
    world.changes.clear()
    for later in (0.0, 0.5, 1.0):
        world.settle(NOW + row.seconds + later)
    assert world.changes == []


def test_no_two_rows_are_alike() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
