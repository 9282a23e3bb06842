"""The tests of the group protocol are tested: each planted bug of mutations.toml must make one of them fail."""

from __future__ import annotations

import collections

import pytest

from tests.unit.agent import mutation
from tests.unit.agent.mutation import Mutation

SEEDS = range(60)
LEAST = 120
LEAST_FOUND = 0.95


def test_planted_bugs_are_found() -> None:
    """`python -m tests.unit.agent.mutation` prints which test finds which bug."""
    loaded = mutation.load()
    planted = [entry for entry in mutation.sample(mutation.mutations()) if not entry.missed]
    found = {entry.name: mutation.search(entry, loaded, SEEDS) for entry in planted}
    assert [name for name, by in found.items() if not by] == [], "no test finds these bugs"


def test_planted_bugs_fit_the_code_and_few_of_them_are_missed() -> None:
    planted = mutation.mutations()
    for entry in planted:
        mutation.patched(entry)
    assert sum(not entry.missed for entry in planted) >= LEAST_FOUND * len(planted)


def test_list_of_planted_bugs_is_long_and_names_each_once() -> None:
    counts = collections.Counter(entry.name for entry in mutation.mutations())
    assert [name for name, count in counts.items() if count > 1] == []
    assert len(counts) >= LEAST
    assert {tests for entry in mutation.mutations() for tests in entry.tests} <= set(mutation.MODULES)


def test_unchanged_group_passes_all_tests_of_the_run() -> None:
    """Otherwise every planted bug would count as found."""
    assert mutation.attempt(None, list(mutation.load().values()), range(20)) == ""


BEYOND = {
    "a text that is not there": ("no such text", "pass", "the list is out of date"),
    "a text that is there twice": ("ordinal", "pass", "the list is out of date"),
    "a change without an effect": ("peer.index = None", "peer.index = (None)", "no function or constant"),
}


@pytest.mark.parametrize(("old", "new", "message"), BEYOND.values(), ids=BEYOND)
def test_entry_that_changes_nothing_is_an_error(old: str, new: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        mutation.attempt(Mutation("roster", old, new, "breaks nothing", ()), [], range(0))


def test_planted_bug_that_hangs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutation, "CPU_SECONDS", 1)
    endless = Mutation("roster", "return self._by_conn.get(conn)", "while True: pass", "hangs", ())
    assert mutation.attempt(endless, [], range(1)) == "it hangs"
