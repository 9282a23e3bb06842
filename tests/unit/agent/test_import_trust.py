"""Attempts that end before their first step end the imports ahead; others do not."""

from __future__ import annotations

import pytest

from dtj_agent.workers.import_trust import SECONDS, ImportTrust

LONG = SECONDS + 1
# Of each attempt: whether imports were done ahead, whether a rank has failed by itself, whether a step was done, and
# how long it lived. The last value: whether nothing is imported ahead after all of them.
HISTORIES = {
    "a rank fails before a step": ([(False, True, True, 9), (True, True, False, 9)], True),
    "peers end it once": ([(False, False, True, 9), (True, False, False, 9)], False),
    "peers end it twice in a row": ([(False, False, True, 9), (True, False, False, 9), (True, False, False, 9)], True),
    "a step between two ends": (
        [(True, False, False, 9), (True, True, True, 9), (True, False, False, 9)],
        False,
    ),
    "an attempt without them between two ends": (
        [(True, False, False, 9), (False, True, False, 9), (True, False, False, 9)],
        True,
    ),
    "only failures after steps": ([(True, True, True, 9)] * 5, False),
    "nothing was imported ahead": ([(False, True, False, 9)] * 5, False),
    "a script without steps fails soon": ([(True, True, False, 9)], True),
    "a script without steps fails late": ([(True, True, False, LONG)] * 5, False),
    "a script that did steps hangs and then fails": ([(False, False, True, 9), (True, True, False, LONG)], True),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_imports_ahead_end_where_they_may_be_the_reason(name: str) -> None:
    attempts, expected = HISTORIES[name]
    trust, now, verdict = ImportTrust(), 0.0, False
    assert not trust.end(now, False), "there was no attempt"
    for ahead, fails, steps, seconds in attempts:
        trust.begin(now, ahead)
        if fails:
            trust.fail()
        now += seconds
        verdict = trust.end(now, steps)
    assert verdict == expected
