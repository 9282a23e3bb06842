"""Python's `tune`: the references of functions, the types of parameters, and a search of a script's function."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dtj.errors import InputError
from dtj.tune import function, function_trial, render
from tests.unit.client.sweeps import LONG

SCRIPT = Path(__file__).with_name("tune_objective.py")
SPACE: dict[str, Any] = {
    "x": {"type": "float", "min": 0, "max": 1},
    "n": {"type": "int", "min": 0, "max": 9},
    "c": {"type": "choice", "values": [True, False, "2", 0.5]},
}


@pytest.mark.parametrize(
    "params", [{"x": 1e-05, "n": 3, "c": True}, {"x": 0.1, "n": 0, "c": "2"}, {"x": 1.0, "n": 9, "c": 0.5}]
)
def test_a_worker_gets_the_parameters_with_their_types(params: dict[str, Any]) -> None:
    decoded = function_trial.decode(SPACE, {name: render.text(value) for name, value in params.items()})
    assert decoded == params
    assert [type(value) for value in decoded.values()] == [type(value) for value in params.values()]


def test_a_function_that_another_process_can_not_find_is_rejected() -> None:
    with pytest.raises(InputError, match=r"tune\(\): objective: must be a function at the top level"):
        function.tune(lambda trial: 1.0, SPACE)
    with pytest.raises(InputError, match=r"tune\(\): spec\.parameters\.x\.type: write one of"):
        function.tune(function_trial.main, {"x": {"type": "real"}})  # type: ignore[arg-type]


@pytest.mark.parametrize(("field", "value"), [("arg", "--learning-rate"), ("arg", "x={}"), ("env", "LR")])
def test_a_place_in_the_command_is_rejected_before_any_trial(field: str, value: str, tmp_path: Path) -> None:
    message = rf"tune\(\): space: x\.{field}: the objective reads trial\['x'\]: omit it"
    with pytest.raises(InputError, match=message):
        function.tune(function_trial.main, {**SPACE, "x": {**SPACE["x"], field: value}}, folder=tmp_path / "search")  # type: ignore[arg-type]
    assert not (tmp_path / "search").exists()


@pytest.mark.thorough
@pytest.mark.timeout(3 * LONG)
def test_a_script_tunes_its_own_function(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "3", "search"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=2 * LONG, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    best = re.search(r"best (\d) (\S+) (\{.*\})", done.stdout)
    assert best, done.stdout
    found = ast.literal_eval(best[3])
    value = (found["x"] - 2) ** 2 + found["n"] + (0 if found["flag"] else 100) + 1 / 3
    assert float(best[2]) == pytest.approx(value)
    assert (tmp_path / "search/best/checkpoint/seen.txt").read_text() == "3\n"
