"""The tests of the operator are tested: each planted bug of mutations.toml must make one of them fail."""

from __future__ import annotations

import importlib
import os
import types
from pathlib import Path

from tests.unit.agent import mutation
from tests.unit.agent.mutation import Mutation
from tests.unit.operator.simulator import World

LIST = Path(__file__).with_name("mutations.toml")
MODULES = {
    "plan": (
        "children",
        "deadlines",
        "suspend",
        "lifecycle",
        "orphans",
        "repairs",
        "outcome",
        "status_throttle",
        "force_delete",
    ),
    "operator": ("overtaken_plan", "executor", "store", "reflector_state"),
}
"""The test modules that may find a bug, by folder; of these, the tests that need no fixture."""
SEEDS = range(int(os.environ.get("DTJ_MUTATION_SEEDS", "200")))
LEAST = 30


def load() -> dict[str, types.ModuleType]:
    """Imports the test modules once, before any child process."""
    found = ((name, f"tests.unit.{folder}.test_{name}") for folder, names in MODULES.items() for name in names)
    return {name: importlib.import_module(path) for name, path in found}


def search(planted: Mutation, loaded: dict[str, types.ModuleType]) -> str:
    """Returns what finds the bug: the tests that the list names, then worlds of the simulator."""
    return mutation.attempt(planted, [loaded[name] for name in planted.tests], SEEDS, World)


def test_planted_bugs_of_the_operator_are_found() -> None:
    loaded = load()
    found = {entry.name: search(entry, loaded) for entry in mutation.sample(mutation.mutations(LIST))}
    assert [name for name, by in found.items() if not by] == [], "no test finds these bugs"


def test_planted_bugs_of_the_operator_fit_its_code() -> None:
    planted = mutation.mutations(LIST)
    assert len({entry.name for entry in planted}) == len(planted) >= LEAST
    for entry in planted:
        mutation.patched(entry)


def test_unchanged_operator_passes_all_tests_of_the_run() -> None:
    """Otherwise every planted bug would count as found."""
    assert mutation.attempt(None, list(load().values()), range(5), World) == ""
