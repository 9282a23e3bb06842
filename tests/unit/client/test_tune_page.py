"""The page and the table of a sweep: any state is drawn, and what is drawn is what is there."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from dtj.tune import page, spec, view
from dtj.tune.engine import State
from dtj.tune.planner import Job, JobState, Limits, Trial, TrialState
from dtj.tune.study import Details
from tests.unit.client.sweeps import sweep

SVG = "{http://www.w3.org/2000/svg}"


def details(number: int, state: TrialState, value: float | None = None, **more: Any) -> Details:
    values = more.pop("values", {})
    last = max(values, default=None)
    return Details(
        trial=Trial(number=number, state=state, value=value, last_step=last, **more),
        params={"decay": "none", "lr": 0.001 * (number + 1), "momentum": 0.5},
        values=values,
        message="ImportFailed: <no & module>" if state is TrialState.FAILED else "",
    )


MANY = [
    details(0, TrialState.COMPLETE, 0.5, values={1: 0.9, 2: 0.5}),
    details(1, TrialState.PRUNED, values={1: 2.0, 2: float("inf")}),
    details(2, TrialState.FAILED),
    details(3, TrialState.COMPLETE, 0.25, values={1: 0.3, 2: 0.25}),
    details(4, TrialState.COMPLETE, 0.75, values={2: 0.75}),
    details(5, TrialState.RUNNING, values={1: 0.4}),
    details(6, TrialState.RUNNING, is_pruning=True),
    Details(trial=Trial(number=7, is_drawn=False), params={}, values={}, message=""),
]


def state(trials: list[Details], *, maximize: bool = False) -> State:
    return State(
        sweep=spec.parse(sweep(), "sweep.yaml"),
        trials=trials,
        jobs={5: Job(state=JobState.ACTIVE, step=1, value=0.4), 6: Job(state=JobState.ACTIVE)},
        limits=Limits(trials=8, parallel=2, maximize=maximize),
        seconds=61.0,
    )


def drawings(text: str) -> dict[str, ElementTree.Element]:
    found = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]
    return {str(one.find(f"{SVG}title").text): one for one in found}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "trials", [[], MANY[:1], MANY[2:3], MANY[7:], MANY], ids=["none", "one", "failed", "new", "many"]
)
def test_every_state_has_four_drawings(trials: list[Details]) -> None:
    assert len(drawings(page.page(state(trials), {}))) == 4


def test_the_page_shows_each_trial_and_the_best() -> None:
    text = page.page(state(MANY), {"lr": 0.75, "momentum": 0.25})
    shown = drawings(text)
    assert "Best: val_loss 0.25" in text
    assert "&lt;no &amp; module&gt;" in text
    assert len(shown["History"].findall(f".//{SVG}circle")) == 4, "trials with a finite last value"
    lines = shown["Parallel coordinates"].findall(f".//{SVG}polyline")
    assert [line.get("class") for line in lines][-1] == "top", "the best trial is drawn last"
    assert "trial 3:" in str(lines[-1].find(f"{SVG}title").text)  # type: ignore[union-attr]
    assert [one.text for one in shown["Importance"].iter(f"{SVG}text")] == ["lr", "75%", "momentum", "25%"]
    assert "Best: val_loss 0.75" in page.page(state(MANY, maximize=True), {})


def test_the_table_shows_running_trials_and_the_best_in_few_rows() -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(view.headline(state(MANY)), view.table(state(MANY), 4), sep="\n", soft_wrap=True)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "search: 5 of 8 trials finished (1 pruned, 1 failed), 2 active; best val_loss 0.25, trial 3; 61 s" in text
    rows = [line.split()[:2] for line in text.splitlines()[2:]]
    assert rows == [["3", "complete"], ["5", "running"], ["6", "stopping"], ["7", "waiting"]]


def test_the_table_shows_that_somebody_has_suspended_a_trial() -> None:
    console = Console(file=io.StringIO(), width=100)
    shown = replace(state(MANY[5:6]), jobs={5: Job(state=JobState.PAUSED)})
    console.print(view.table(shown, 4))
    assert "5  suspended" in console.file.getvalue()  # type: ignore[attr-defined]
