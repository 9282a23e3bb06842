"""Checks a group's records, whatever has happened to the group. Pure.

The steps that count are, of each step, those of the newest attempt that did it. Every step that was
done, counted or lost, must be that of the uninterrupted run bit for bit, because each attempt begins
from a state that counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from tests.chaos.records import Records, Sample, Step

MOST = 20
"""Findings that are reported: the first ones explain the rest."""


def findings(records: Records, expected: Mapping[int, Sample], losses: bool = True) -> list[str]:
    """Returns what is wrong with a run; `expected` is the uninterrupted one by step.

    `losses`: whether losses must be equal too. Floating-point sums over another number of ranks are not.
    """
    attempts = _by_attempt(records)
    found = [f"a worker joined another attempt: {line}" for line in records.stale]
    found += _values(attempts, expected, losses)
    found += _ranks(attempts)
    found += _chain(records, attempts, max(expected, default=0))
    found += _one_attempt_at_a_time(records)
    return found[:MOST]


def _by_attempt(records: Records) -> dict[int, dict[int, list[Step]]]:
    attempts: dict[int, dict[int, list[Step]]] = defaultdict(lambda: defaultdict(list))
    for step in records.steps:
        attempts[step.attempt][step.step].append(step)
    return dict(sorted(attempts.items()))


def _values(
    attempts: Mapping[int, Mapping[int, list[Step]]], expected: Mapping[int, Sample], losses: bool
) -> list[str]:
    """Checks losses and samples of every step that was done, counted or lost."""
    found = []
    for attempt, steps in attempts.items():
        for number, done in steps.items():
            if number not in expected:
                found.append(f"attempt {attempt} did step {number}, which the uninterrupted run has not")
                continue
            loss, ids = expected[number]
            found += [
                f"step {number} of attempt {attempt}, rank {one.rank}: loss {one.loss!r}, expected {loss!r}"
                for one in done
                if losses and one.loss != loss
            ]
            taken = sorted(sample for one in done for sample in one.ids)
            whole = len(done) == done[0].world
            if taken != sorted(ids) if whole else not set(taken) <= set(ids):
                found.append(f"step {number} of attempt {attempt} had other samples than the uninterrupted run")
    return found


def _ranks(attempts: Mapping[int, Mapping[int, list[Step]]]) -> list[str]:
    """Checks that each rank did a step once in an attempt, and that an attempt has one size."""
    found = []
    for attempt, steps in attempts.items():
        if len({one.world for done in steps.values() for one in done}) > 1:
            found.append(f"attempt {attempt} had two sizes")
        for number, done in steps.items():
            if len({one.rank for one in done}) < len(done):
                found.append(f"a rank did step {number} twice in attempt {attempt}")
    return found


def _chain(records: Records, attempts: Mapping[int, Mapping[int, list[Step]]], end: int) -> list[str]:
    """Checks that no step is missing: each attempt resumes from one that was done, and does every next one."""
    found = []
    # A rank that logs a step proves that all ranks took part: the others may have died before their line.
    done_so_far = 0
    for attempt, steps in attempts.items():
        resumed = {begin.step for begin in records.begins if begin.attempt == attempt}
        if len(resumed) != 1:
            found.append(f"the ranks of attempt {attempt} resumed from different steps: {sorted(resumed)}")
        first, last = min(steps), max(steps)
        if first != min(resumed) + 1 or sorted(steps) != list(range(first, last + 1)):
            found.append(f"attempt {attempt} resumed from {min(resumed)} and did {first} to {last} with gaps")
        world = records.worlds[attempt]
        # Only the last step may lack lines: a rank that has none for an earlier one did not take part.
        short = [
            number
            for number, done in steps.items()
            if len(done) < world and (number < last or attempt == max(attempts))
        ]
        if short:
            found.append(f"attempt {attempt} lacks ranks at the steps {short}")
        if first > done_so_far + 1:
            found.append(f"attempt {attempt} began with step {first}, but only {done_so_far} were done")
        done_so_far = max(done_so_far, last)
    if done_so_far != end:
        found.append(f"{done_so_far} steps were done in place of {end}")
    return found


def _one_attempt_at_a_time(records: Records) -> list[str]:
    """Checks that no worker of an attempt does a step or commits once a later attempt has done one."""
    found, newest = [], 0
    events = [(one.time, one.attempt, f"did step {one.step}") for one in records.steps]
    events += [(one.time, one.attempt, f"committed step {one.step}") for one in records.commits]
    for when, attempt, what in sorted(events):
        if attempt < newest:
            found.append(f"attempt {attempt} {what} at {when:.3f}, after attempt {newest} had begun")
        newest = max(newest, attempt)
    return found
