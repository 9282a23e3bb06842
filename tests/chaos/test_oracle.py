"""The oracle finds each kind of damage to a run: an oracle that can't fail shows nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos import oracle
from tests.chaos.plain_script import SAMPLES, ids_of, trajectory
from tests.chaos.records import Records, Sample

END, BROKEN_AT, RESUMED_FROM = 30, 25, 20
EXPECTED: dict[int, Sample] = {step: (loss, ids) for step, loss, ids in trajectory(END)}
Lines = dict[str, list[str]]
"""The lines of each process."""


def lines_of(attempt: int, resumed: int, last: int, world: int = 2) -> Lines:
    """Returns what the ranks of an attempt log that does the steps after `resumed` to `last`."""
    found: Lines = {}
    for rank in range(world):
        lines = found[f"{attempt}-{rank}"] = [f"begin {attempt}.0 {attempt} {rank} {world} {resumed}"]
        for step in range(resumed + 1, last + 1):
            ids = ",".join(map(str, ids_of(step - 1)[rank::world]))
            when = attempt + step / 1000
            lines.append(f"step {when} {attempt} {step} {EXPECTED[step][0].hex()} {ids}")
            if step % 20 == 0 and rank == 0:
                lines.append(f"commit {when} {attempt} {step}")
    return found


def right() -> Lines:
    """Returns a run that broke at step 25 and was continued from step 20 by a smaller group."""
    lines = lines_of(1, 0, BROKEN_AT, world=3) | lines_of(2, RESUMED_FROM, END)
    lines["1-0"].pop()  # a rank that was killed between the collective and its line
    return lines


def findings(lines: Lines) -> list[str]:
    """Returns what the oracle finds in these lines."""
    records = Records()
    for process, text in lines.items():
        records.take(process, "".join(f"{line}\n" for line in text))
    return oracle.findings(records, EXPECTED)


def replace(lines: Lines, process: str, step: int, *changes: tuple[int, str]) -> None:
    """Changes fields of the line of a step."""
    for number, line in enumerate(lines[process]):
        fields = line.split()
        if fields[0] == "step" and int(fields[3]) == step:
            for place, text in changes:
                fields[place] = text
            lines[process][number] = " ".join(fields)


def drop(lines: Lines, attempt: int, *steps: int) -> None:
    """Removes steps from all ranks of an attempt."""
    for process, text in lines.items():
        if process.startswith(f"{attempt}-"):
            kept = [line for line in text if line.split()[0] != "step" or int(line.split()[3]) not in steps]
            lines[process] = kept


def last_bit(lines: Lines) -> None:
    replace(lines, "2-1", 22, (4, (EXPECTED[22][0] + 2**-53).hex()))


def lost_step_differs(lines: Lines) -> None:
    replace(lines, "1-1", 23, (4, (0.5).hex()))


def other_samples(lines: Lines) -> None:
    replace(lines, "2-1", 22, (5, ",".join(map(str, ids_of(22)[1::2]))))


def resumed_too_late(lines: Lines) -> None:
    drop(lines, 1, 19, 20, 21, 22, 23, 24, 25)


def gap(lines: Lines) -> None:
    drop(lines, 2, 27)


def rank_without_steps(lines: Lines) -> None:
    lines["2-1"] = lines["2-1"][:1]


def never_finished(lines: Lines) -> None:
    drop(lines, 2, 29, 30)


def done_twice(lines: Lines) -> None:
    lines["2-0"].append(lines["2-0"][-1])


def different_starts(lines: Lines) -> None:
    lines["2-0"][0] = f"begin 2.0 2 0 2 {RESUMED_FROM + 1}"


def stale_step(lines: Lines) -> None:
    replace(lines, "1-1", 25, (1, "2.0225"))


def stale_commit(lines: Lines) -> None:
    lines["1-0"].append("commit 2.0225 1 20")


def stale_join(lines: Lines) -> None:
    lines["2-0"].append("stale 1 1")


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        (last_bit, "step 22 of attempt 2, rank 1: loss"),
        (lost_step_differs, "step 23 of attempt 1, rank 1: loss 0.5"),
        (other_samples, "step 22 of attempt 2 had other samples"),
        (resumed_too_late, "attempt 2 began with step 21, but only 18 were done"),
        (gap, "attempt 2 resumed from 20 and did 21 to 30 with gaps"),
        (rank_without_steps, "attempt 2 lacks ranks at the steps [21, 22"),
        (never_finished, "28 steps were done in place of 30"),
        (done_twice, "a rank did step 30 twice in attempt 2"),
        (different_starts, "the ranks of attempt 2 resumed from different steps: [20, 21]"),
        (stale_step, "attempt 1 did step 25 at 2.022, after attempt 2 had begun"),
        (stale_commit, "attempt 1 committed step 20 at 2.022, after attempt 2 had begun"),
        (stale_join, "a worker joined another attempt: stale 1 1"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_oracle_finds_planted_damage(damage: Callable[[Lines], None], finding: str) -> None:
    lines = right()
    damage(lines)
    assert [one for one in findings(lines) if one.startswith(finding)], findings(lines)


def test_oracle_accepts_a_restart_and_a_smaller_group() -> None:
    assert findings(right()) == []


def test_plain_run_takes_each_sample_once_an_epoch() -> None:
    steps = list(trajectory(2 * SAMPLES // 12))
    for epoch in (steps[: SAMPLES // 12], steps[SAMPLES // 12 :]):
        assert sorted(sample for _, _, ids in epoch for sample in ids) == list(range(SAMPLES))
