"""Population based training: who starts where, how parameters change, and a real sweep that is killed."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dtj.tune import pbt
from dtj.tune.pbt import Origin
from dtj.tune.planner import Trial, TrialState
from dtj.tune.spec import ChoiceParameter, FloatParameter, IntParameter
from tests.unit.client.sweeps import LONG, TuneRun, sweep
from tests.unit.client.tune_population import SIZE as POPULATION
from tests.unit.client.tune_population import STEPS as EACH

SIZE, STEPS = 4, 20


def generation(*values: float | None) -> list[Trial]:
    """Returns the trials of a generation; None is the value of one that failed."""
    return [
        Trial(number=number, state=TrialState.FAILED if value is None else TrialState.COMPLETE, value=value)
        for number, value in enumerate(values)
    ]


def origins(trials: list[Trial], *, maximize: bool = False) -> list[Origin | None]:
    size = len(trials)
    return [pbt.origin(n, trials, population=size, seed=1, maximize=maximize) for n in range(size, 2 * size)]


def test_the_worst_member_is_replaced_by_the_best_and_the_others_train_on() -> None:
    own = [Origin(number, is_changed=False) for number in range(4)]
    assert origins(generation(3.0, 1.0, 4.0, 2.0)) == [own[0], own[1], Origin(1, is_changed=True), own[3]]
    assert origins(generation(3.0, 1.0, 4.0, 2.0), maximize=True) == [
        own[0], Origin(2, is_changed=True), own[2], own[3],
    ]  # fmt: skip


def test_failed_members_are_replaced_and_the_last_one_stays() -> None:
    found = origins(generation(None, None, 4.0, None))
    assert found == [Origin(2, is_changed=number != 2) for number in range(4)]
    assert origins(generation(None, None)) == [None, None]


def test_the_first_generation_starts_nowhere() -> None:
    assert pbt.origin(3, generation(1.0, 2.0, 3.0), population=4, seed=1, maximize=False) is None


@pytest.mark.parametrize(
    "parameter",
    [
        FloatParameter(type="float", min=1e-4, max=0.1, log=True),
        FloatParameter(type="float", min=0, max=1),
        FloatParameter(type="float", min=0, max=1, step=0.3),
        IntParameter(type="int", min=1, max=64, log=True),
        IntParameter(type="int", min=-7, max=9, step=5),
    ],
)
def test_a_changed_number_stays_in_its_space_and_moves(parameter: FloatParameter | IntParameter) -> None:
    seen, drawn = set(), 0
    value: Any = parameter.min
    for seed in range(400):
        found = pbt.changed(value, parameter, random.Random(seed))
        if found is None:
            drawn += 1
            continue
        assert not isinstance(found, str)
        assert type(found) is type(value)
        assert parameter.min <= found <= parameter.max
        if parameter.step:
            cells = (found - parameter.min) / parameter.step
            assert cells == pytest.approx(round(cells))
        seen.add(found)
        value = found
    assert len(seen) > 2
    assert 60 < drawn < 140, "a quarter is drawn as in the first generation"


def test_a_changed_choice_is_kept_or_drawn() -> None:
    parameter = ChoiceParameter(type="choice", values=["a", "b"])
    assert {pbt.changed("a", parameter, random.Random(seed)) for seed in range(50)} == {"a", None}


def population(folder: Path) -> TuneRun:
    algorithm = {"name": "pbt", "seed": 2, "population": SIZE, "stepsPerGeneration": STEPS}
    folder.mkdir()
    return TuneRun(folder, sweep(trials=3 * SIZE, parallel=SIZE, algorithm=algorithm))


@pytest.mark.thorough
@pytest.mark.timeout(4 * LONG)
def test_generations_start_from_better_checkpoints_and_a_kill_changes_nothing(tmp_path: Path) -> None:
    calm, killed = population(tmp_path / "calm"), population(tmp_path / "killed")
    try:
        assert calm.run("--plain") == 0, calm.output()
        for trial in (1, SIZE, 2 * SIZE + 1):
            process = killed.begin("--plain")
            killed.until_started(trial)
            process.kill()
            process.wait()
        assert killed.run("--plain") == 0, killed.output()
    finally:
        for run in (calm, killed):
            run.kill_rest()
    assert killed.trials() == calm.trials()
    assert [killed.args(n) for n in range(3 * SIZE)] == [calm.args(n) for n in range(3 * SIZE)]
    assert killed.starts() == dict.fromkeys(range(3 * SIZE), 1)
    values = {number: value for number, (_, value) in calm.trials().items()}
    for number in range(SIZE, 3 * SIZE):
        status = calm.status(number)
        variables = {each["name"]: each["value"] for each in status["spec"]["env"]}
        parent = int(variables["TUNE_FROM"].removeprefix("search-"))
        generation = number // SIZE
        assert parent // SIZE == generation - 1
        assert int(variables["TUNE_STEPS"]) == (generation + 1) * STEPS == calm.saved_step(number)
        log = (calm.sweep / f"trials/{number:04d}/start-1/run/search-{number:04d}-0.log").read_text()
        assert f"step {generation * STEPS + 10} " in log
        assert "step 10 " not in log, "it did not begin at the other trial's checkpoint"
        if parent != number - SIZE:
            assert values[parent] < values[number - SIZE], "it begins at a better one"  # type: ignore[operator]
            assert calm.args(number) != calm.args(parent)
        else:
            assert calm.args(number) == calm.args(parent)
    replaced = [n for n in range(SIZE, 3 * SIZE) if f"trial {n} starts from trial" in calm.output()
                and f"trial {n} starts from trial {n - SIZE}\n" not in calm.output()]  # fmt: skip
    assert len(replaced) == 2, "one of each generation"
    best = json.loads((calm.sweep / "best/best.json").read_text())
    assert best["trial"] >= 2 * SIZE


@pytest.mark.timeout(2 * LONG)
def test_a_function_begins_where_the_generation_before_has_ended(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).with_name("tune_population.py")), "search"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LONG, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    ended = {}
    for number in range(3 * POPULATION):
        (saved,) = (tmp_path / "search/volumes").glob(f"**/climb-{number:04d}/sum.txt")
        step, total = saved.read_text().split()
        generation = number // POPULATION
        assert int(step) == (generation + 1) * EACH
        assert saved.with_name("began.txt").read_text() == f"{generation * EACH}\n"
        ended[number] = abs(3 * EACH - float(total))
    best = re.search(r"best (\d+) (\S+)", done.stdout)
    assert best, done.stdout
    assert (int(best[1]), float(best[2])) == min(ended.items(), key=lambda item: item[1])
    assert int(best[1]) >= 2 * POPULATION, "only three generations come so far"
