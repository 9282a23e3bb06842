"""The benchmark of a killed rank of each framework: which moments make the phases, and what meets a target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.recovery import logbook
from benchmarks.recovery.learning import has_learned, left_out
from benchmarks.warm_restart.results import NAMES, TARGETS, render
from benchmarks.warm_restart.trial import FRAMEWORKS, PHASES, phases


def test_pods_have_learned_once_each_that_reported_imports_has_logged_them(tmp_path: Path) -> None:
    for ordinal in range(2):
        (tmp_path / f"run/state-{ordinal}").mkdir(parents=True)
        (tmp_path / f"run/recovery-{ordinal}.log").write_text("warm process 7 is ready: 1300 modules in 2.1 s\n")
    assert has_learned(tmp_path), "a script that imports torch alone reports nothing"
    for ordinal in range(2):
        (tmp_path / f"run/state-{ordinal}/imports.json").write_text("{}")
        assert not has_learned(tmp_path)
        with (tmp_path / f"run/recovery-{ordinal}.log").open("a") as file:
            file.write("warm process: no module wandb (it has started 1 threads)\n")
        assert not has_learned(tmp_path), "the others are imported after it"
        with (tmp_path / f"run/recovery-{ordinal}.log").open("a") as file:
            file.write("warm process: 70 modules that the script imported are imported for its next start, in 1.2 s\n")
        assert has_learned(tmp_path)
    assert left_out(tmp_path) == ["wandb (it has started 1 threads)"]


def test_pod_whose_ranks_import_by_themselves_has_learned_once_they_have(tmp_path: Path) -> None:
    (tmp_path / "run/state-0").mkdir(parents=True)
    (tmp_path / "run/state-0/imports.json").write_text("{}")
    lines = (
        "no module pandas (it has started 1 threads); it is imported ahead for each rank",
        "70 modules that the script imported are imported for its next start, in 1.2 s",
        "308 modules that the script imported are imported ahead for each rank, in 2.4 s",
    )
    seen = []
    for line in lines:
        with (tmp_path / "run/recovery-0.log").open("a") as file:
            file.write(f"warm process: {line}\n")
        seen.append(has_learned(tmp_path))
    assert seen == [False, False, True]


def log(rank: int, begin: float, *moments: float) -> str:
    names = ("imported", "joined", "built", "loaded")
    lines = [f"{name} {when}" for name, when in zip(names, moments, strict=False)]
    return "\n".join([f"begin {begin} 1 {rank} 2 7", *lines, f"step {moments[-1]} 13", "step 99 14", ""])


def test_each_phase_ends_with_its_last_rank_and_all_phases_make_the_whole() -> None:
    texts = (log(0, 10.1, 10.2, 10.5, 10.6, 10.7, 11.0), log(1, 10.2, 10.4, 10.5, 10.6, 10.9, 11.1))
    found = phases([entry for text in texts for entry in logbook.parse(text)], fault=10.0)
    assert list(found["phases"].values()) == [0.2, 0.2, 0.1, 0.1, 0.3, 0.2]
    assert tuple(found["phases"]) == PHASES
    assert (found["seconds"], found["step"]) == (1.1, 13)


def test_phase_whose_moment_is_not_logged_is_zero_and_the_next_one_has_its_time() -> None:
    """Lightning joins in `fit`, where its script has no hook."""
    texts = (log(0, 10.1, 10.2, 10.5, 10.6, 10.7, 11.0), log(1, 10.2, 10.4, 10.5, 10.6, 10.9, 11.1))
    lightning = ["".join(line for line in text.splitlines(True) if "joined" not in line) for text in texts]
    found = phases([entry for text in lightning for entry in logbook.parse(text)], fault=10.0)
    assert found["phases"] == dict(zip(PHASES, (0.2, 0.2, 0.0, 0.2, 0.3, 0.2), strict=True))
    assert found["seconds"] == 1.1


def trial(arm: str, seconds: float | None, load: float = 0.1) -> dict[str, Any]:
    spans = dict.fromkeys(PHASES, 0.05) | {"load": load}
    measured = {"seconds": None} if seconds is None else {"seconds": seconds, "phases": spans}
    return {"arm": arm, "trial": 0, "load": 0.5, **measured}


@pytest.mark.parametrize(
    ("seconds", "verdict"),
    [([0.55, 0.55, 0.9], "met"), ([0.65, 0.65, 0.2], "missed"), ([0.2, None, None], "missed")],
)
def test_median_without_the_scripts_own_load_is_judged(seconds: list[float | None], verdict: str) -> None:
    assert f"| ≤ 0.5: {verdict} |" in render("here", [trial("plain", value) for value in seconds])


def test_trial_without_a_step_counts_as_the_limit() -> None:
    assert "| 1/2 | 38.00 | 75.00 |" in render("here", [trial("gpt", 1.0), trial("gpt", None)])


def test_each_framework_has_a_name_and_only_frameworks_have_targets() -> None:
    assert list(NAMES) == list(FRAMEWORKS)
    assert set(TARGETS) <= set(FRAMEWORKS)
