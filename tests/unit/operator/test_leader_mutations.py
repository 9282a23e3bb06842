"""The tests of the leader election are tested: each planted bug must make a test fail that its entry names."""

from __future__ import annotations

from pathlib import Path

from tests.unit.agent import mutation
from tests.unit.operator import test_election, test_leadership

LIST = Path(__file__).with_name("mutations_leader.toml")
MODULES = {"election": test_election, "leadership": test_leadership}
LEAST = 25


def test_planted_bugs_of_the_election_are_found_by_the_named_tests() -> None:
    planted = mutation.mutations(LIST)
    found = {
        entry.name: mutation.attempt(entry, [MODULES[name] for name in entry.tests], range(0)) for entry in planted
    }
    assert [name for name, by in found.items() if not by] == [], "no test finds these bugs"
    assert len(found) == len(planted) >= LEAST


def test_unchanged_election_passes_all_tests_of_the_run() -> None:
    """Otherwise every planted bug would count as found."""
    assert mutation.attempt(None, list(MODULES.values()), range(0)) == ""
