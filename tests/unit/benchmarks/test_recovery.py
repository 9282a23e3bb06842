"""The recovery benchmark: what its logs prove, and what its tables count."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.recovery import logbook, trials
from benchmarks.recovery.arms import ARMS
from benchmarks.recovery.results import TABLES, percentile, render


def log(rank: int, began: float, steps: list[tuple[float, int]], world: int = 2, attempt: int = 0) -> str:
    """Returns what the script logs."""
    lines = [f"begin {began} {attempt} {rank} {world} {100 + rank}", *(f"step {when} {step}" for when, step in steps)]
    return "\n".join(lines) + "\n"


def entries(*logs: str) -> list[logbook.Entry]:
    return [entry for text in logs for entry in logbook.parse(text)]


def test_group_step_is_complete_when_its_last_rank_has_done_it() -> None:
    found = entries(log(0, 1, [(2, 1), (3, 2)]), log(1, 1, [(2.5, 1)]))
    assert logbook.group_steps(found) == [(2.5, 1)]


def test_step_of_a_process_from_before_the_fault_ends_no_recovery() -> None:
    survivor, replacement = log(0, 1, [(2, 1), (9, 7)]), log(1, 5, [(8, 7)])
    assert logbook.group_steps(entries(survivor, replacement), after=4) == []


def test_step_that_one_rank_of_two_completes_ends_no_recovery() -> None:
    assert logbook.group_steps(entries(log(0, 5, [(6, 7)]), log(1, 5, [])), after=4) == []


def test_smaller_group_recovers_with_its_own_size() -> None:
    """Reads the logs of a process that entered the training twice, as with an in-process restart."""
    twice = log(0, 1, [(2, 1)], world=3) + log(0, 5, [(6, 2)], world=2)
    assert logbook.group_steps(entries(twice, log(1, 5, [(6.5, 2)], world=2)), after=4) == [(6.5, 2)]


def test_survivors_alone_are_no_recovery_of_a_group_that_gets_its_rank_back() -> None:
    survivor = log(0, 5, [(6, 7)], world=1) + log(0, 8, [(9, 8)])
    found = entries(survivor, log(1, 8, [(9.5, 8)]))
    assert logbook.group_steps(found, after=4) == [(6, 7), (9.5, 8)]
    assert logbook.group_steps(found, after=4, least_world=2) == [(9.5, 8)]


def test_productive_time_has_each_step_once_in_proportion_to_its_ranks() -> None:
    """Step 12 is done twice; between the entries lie 1 s and 3 s without a step; a step usually lasts 1 s."""
    before = [log(rank, 1, [(2, 10), (3, 11), (4, 12)]) for rank in range(2)]
    again = [log(rank, 5, [(6, 12), (7, 13)]) for rank in range(2)]
    alone = log(0, 10, [(11, 14), (12, 15)], world=1)
    assert logbook.productive_seconds(entries(*before, *again, alone), first=10, ranks=2) == 1 + 1 + 1 + 2 * 0.5


def test_productive_time_is_that_of_the_steps_not_of_the_median() -> None:
    slow = [log(rank, 1, [(2, 1), (3, 2), (4, 3), (9, 4)]) for rank in range(2)]
    assert logbook.productive_seconds(entries(*slow), first=1, ranks=2) == 7


def test_step_that_only_the_checkpoint_has_counts() -> None:
    """Kills a rank after the checkpoint of step 12, before the rank has logged the step."""
    found = entries(log(0, 1, [(2, 11), (3, 12)]), log(1, 1, [(2, 11)]), *(log(r, 4, [(5, 13)]) for r in range(2)))
    assert logbook.productive_seconds(found, first=10, ranks=2) == 3


def test_line_that_is_being_written_is_ignored() -> None:
    assert logbook.parse(log(0, 1, [(2, 1)]) + "step 3.0")[0].steps == [(2.0, 1)]


def trial(arm: str, seconds: float | None, **more: Any) -> dict[str, Any]:
    return {"arm": arm, "trial": 0, "seconds": seconds, **more}


@pytest.mark.parametrize(
    ("seconds", "verdict"),
    [
        ([0.2, 0.2, 0.5], "met"),
        ([0.2, 0.2, None], "missed"),
        ([0.3, 0.3, 0.3], "missed"),
        ([0.2, 0.2, 0.7], "missed"),
    ],
)
def test_kill_meets_its_target_only_if_all_recover_in_time(seconds: list[float | None], verdict: str) -> None:
    text = render(TABLES["kill"], "here", [trial("dtj", value) for value in seconds])
    assert f"p95 ≤ 0.6: {verdict} |" in text


def test_hang_counts_as_the_limit() -> None:
    text = render(TABLES["kill"], "here", [trial("torchrun", value) for value in (3.0, None, None)])
    assert "| torchrun | 1/3 | ≥ 75 | ≥ 75 | ≥ 75 |  |" in text


@pytest.mark.parametrize(("ours", "verdict"), [(1.0, "0.50x, met"), (1.2, "0.60x, missed")])
def test_first_start_is_judged_beside_that_of_torchrun(ours: float, verdict: str) -> None:
    assert verdict in render(TABLES["start"], "here", [trial("dtj", ours), trial("torchrun", 2.0)])


@pytest.mark.parametrize(("share", "verdict"), [(0.99, "met"), (0.97, "missed")])
def test_goodput_is_better_when_larger(share: float, verdict: str) -> None:
    assert f"≥ 0.98: {verdict} |" in render(TABLES["goodput"], "here", [trial("dtj", 0.0, goodput=share)])


def test_named_ranks_are_counted() -> None:
    text = render(TABLES["stop"], "here", [trial("dtj", 2.0, named=True), trial("dtj", 2.0, named=False)])
    assert "names the stopped rank in 1 of 2 trials" in text


def test_floor_of_an_agent_that_returns_is_in_the_note() -> None:
    text = render(TABLES["agent"], "here", [trial("dtj", 5.2, floor=4.9), trial("dtj", 5.3, floor=5.1)])
    assert "imports torch and torch._dynamo in 5.00 s here" in text


def test_kill_of_torchft_shows_when_the_survivors_train_again() -> None:
    text = render(TABLES["kill"], "here", [trial("torchft", 8.0, survivors=5.0)])
    assert "| torchft | 1/1 | 8.00 | 8.00 | 8.00 |" in text
    assert "survivors train after 5.00 s" in text


def test_nvrx_that_starts_no_process_takes_no_part_in_the_goodput() -> None:
    assert trials.arms_of("goodput", list(ARMS)) == ["dtj", "torchrun", "torchrun, tuned", "torchft"]


@pytest.mark.parametrize(("share", "value"), [(0.95, 19.0), (1.0, 20.0), (0.05, 1.0)])
def test_percentile_is_a_measured_value(share: float, value: float) -> None:
    assert percentile([float(number) for number in range(20, 0, -1)], share) == value
