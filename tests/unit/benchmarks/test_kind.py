"""The benchmark on kind: its tables and plot, how it finds a rank's process, and that its light worker trains."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kind import group, jobset, ladder, many, plot
from benchmarks.kind.results import REPORT
from benchmarks.kind.tables import CLAIMS, LADDER, MANY, render
from tests.chaos import plain_script
from tests.chaos.records import Records
from tests.lib.ports import free_port
from tests.lib.waiting import wait_until

SCRIPT = Path(group.__file__).with_name("light_script.py")


def table(key: str, *trials: dict[str, Any]) -> str:
    return render(key, {"circumstances": "here", "trials": list(trials)})


def lost(arm: str, seconds: float, trial: int = 0, **more: Any) -> dict[str, Any]:
    return {"arm": arm, "trial": trial, "seconds": seconds, **({"attempts": 1} if arm == many.OURS else {}), **more}


@pytest.mark.parametrize(
    ("seconds", "more", "verdict"),
    [
        (12.0, {}, "| 1.20x |  | 1 | 0 | ≤ 1.2x: met; 1 attempt: met; no hang: met |"),
        (12.1, {}, "| 1.21x |  | 1 | 0 | ≤ 1.2x: missed; 1 attempt: met; no hang: met |"),
        (11.0, {"attempts": 2}, "| 1.10x |  | 2 | 0 | ≤ 1.2x: met; 1 attempt: missed; no hang: met |"),
        (11.0, {"attempts": 0}, "| 1.10x |  | 0 | 0 | ≤ 1.2x: met; 1 attempt: missed; no hang: met |"),
    ],
)
def test_many_lost_pods_are_judged_beside_the_same_pods(seconds: float, more: Any, verdict: str) -> None:
    assert verdict in table(MANY, lost(many.SAME_TEMPLATE, 10.0), lost(many.OURS, seconds, **more))


def test_lightest_pods_are_shown_and_judge_nothing() -> None:
    found = table(MANY, lost(many.BARE, 5.0), lost(many.SAME_TEMPLATE, 10.0), lost(many.OURS, 11.0))
    assert "| 1.10x | 2.20x | 1 | 0 | ≤ 1.2x: met; 1 attempt: met; no hang: met |" in found


def test_hang_counts_and_has_no_ratio() -> None:
    hung = {"arm": many.OURS, "trial": 1, "hang": True, "attempts": 1}
    found = table(MANY, lost(many.SAME_TEMPLATE, 10.0), lost(many.SAME_TEMPLATE, 1.0, 1), lost(many.OURS, 11.0), hung)
    assert "| dtj | 2 | 11.00 | 11.00 | 1.10x |  | 1 | 1 | ≤ 1.2x: met; 1 attempt: met; no hang: missed |" in found


def test_ratio_is_taken_trial_by_trial() -> None:
    trials = [
        lost(many.SAME_TEMPLATE, 10.0),
        lost(many.SAME_TEMPLATE, 20.0, 1),
        lost(many.OURS, 11.0),
        lost(many.OURS, 22.0, 1),
    ]
    assert "| 1.10x |" in table(MANY, *trials)


def rung(arm: str, seconds: float, **more: Any) -> dict[str, Any]:
    return {"arm": arm, "trial": 0, "seconds": seconds, "kept": 3, "lost_steps": 7, "attempts": 1, **more}


def test_claim_of_a_rung_is_judged_by_its_worst_trial() -> None:
    fast, slow = rung(ladder.IN_PLACE, 0.5), rung(ladder.IN_PLACE, 8.1)
    other = rung(ladder.JOBSET_IN_PLACE, 8.0)
    claim = "each trial is faster than every trial of any other answer"
    assert f"| dtj: in place | 1 | 0.50 | 0.50 | 3 of 3 | 7 | 0 | {claim}: holds |" in table(LADDER, fast, other)
    assert f"{claim}: does not hold" in table(LADDER, fast, slow, other)


def test_claim_of_a_rung_that_hung_does_not_hold() -> None:
    hung = {"arm": ladder.IN_PLACE, "trial": 1, "hang": True}
    row = "| dtj: in place | 2 | 0.50 | 0.50 | 3 of 3 | 7 | 1 | "
    found = table(LADDER, rung(ladder.IN_PLACE, 0.5), hung, rung(ladder.JOBSET_IN_PLACE, 8.0))
    assert next(line for line in found.splitlines() if line.startswith(row)).endswith("does not hold |")


def test_every_rung_that_is_measured_has_a_claim() -> None:
    assert {arm for arms, _ in ladder.SETS for arm in arms} == set(CLAIMS)


def test_plot_has_the_slowest_answer_first(tmp_path: Path) -> None:
    trials = [
        rung(ladder.IN_PLACE, 0.5),
        rung(ladder.JOBSET_RECREATE, 9.0),
        {"arm": ladder.DELETED_SPARE, "hang": True},
    ]
    results = {LADDER: {"trials": trials}}
    assert list(plot.bars(results)) == [ladder.JOBSET_RECREATE, ladder.IN_PLACE]
    plot.draw(results, tmp_path / "ladder.png")
    assert (tmp_path / "ladder.png").read_bytes().startswith(b"\x89PNG")


def test_readme_shows_the_results() -> None:
    assert REPORT.readme.read_text() == REPORT.rendered()


@pytest.mark.parametrize("trial", [0, 1])
def test_deleted_pods_are_all_but_two_and_the_leader_stays_in_every_second_trial(trial: int) -> None:
    ordinals = many.lost_ordinals(trial)
    assert len(set(ordinals)) == many.LOST
    assert set(ordinals) < set(range(many.PODS))
    assert (0 in ordinals) == bool(trial % 2)


def test_jobset_restarts_in_place_only_with_what_its_webhook_asks_for() -> None:
    *_, made = jobset.objects("space", jobset.IN_PLACE, 3, "/script.py", "image", {})
    (replicated,) = made["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert (job["backoffLimit"], job["podReplacementPolicy"]) == (2147483647, "Failed")
    assert job["completions"] == job["parallelism"] == 3
    assert job["template"]["spec"]["restartPolicy"] == "OnFailure"


def test_processes_in_containers_are_none_of_this_namespace() -> None:
    assert os.getpid() not in group.pids_in_containers(os.getpid())


def test_ranks_of_the_light_script_train_together_and_end_with_a_lost_peer(tmp_path: Path) -> None:
    port, world = free_port(), 3
    common = {
        **os.environ, "PYTHONPATH": str(Path(plain_script.__file__).parent), "LIGHT_FOLDER": str(tmp_path),
        "LIGHT_STEP_SECONDS": "0.01", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "WORLD_SIZE": str(world), "DTJ_ATTEMPT": "4",
    }  # fmt: skip
    ranks = [
        subprocess.Popen([sys.executable, SCRIPT], env=common | {"RANK": str(rank)}, stderr=subprocess.DEVNULL)
        for rank in range(world)
    ]
    records = Records()

    def steps() -> int:
        if (tmp_path / "log").is_dir():
            records.read(tmp_path / "log")
        return records.group_steps.get(4, 0)

    try:
        wait_until("steps of all ranks", lambda: steps() >= 3)
        assert set(records.processes()) == {0, 1, 2}
        ranks[1].kill()
        assert [rank.wait(30) != 0 for rank in ranks] == [True, True, True]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait(30)
