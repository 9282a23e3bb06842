"""The notebook of examples/ executes, prints what it has kept, and its own checks hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hack import notebook

ROOT = Path(__file__).parents[3]
NOTEBOOK = ROOT / "examples/first-job.ipynb"


@pytest.mark.thorough
@pytest.mark.torch
@pytest.mark.timeout(300)
def test_notebook_executes_and_prints_what_it_has_kept() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hack.notebook", "--check", str(NOTEBOOK)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_notebook_has_kept_the_outputs_of_a_whole_execution() -> None:
    cells = notebook.code_cells(json.loads(NOTEBOOK.read_text("utf-8")))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    printed = "\n".join(notebook.shown([cell["outputs"] for cell in cells]))
    assert "SIGKILL" in printed
    assert "InPlace" in printed
    assert "an SVG" in printed


CELLS = [["one = 1\n", "print(one, 2.5)"], ["one + 1"], ["for _ in range(2):\n", "    print('a   b')\n"]]


def book(tmp_path: Path) -> Path:
    cells = [{"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": [], "source": s} for s in CELLS]
    path = tmp_path / "book.ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return path


def test_execution_keeps_prints_and_the_last_value(tmp_path: Path) -> None:
    path = book(tmp_path)
    assert notebook.main([str(path)]) == 0
    outputs = [cell["outputs"] for cell in json.loads(path.read_text())["cells"]]
    assert outputs[0][0]["text"] == ["1 2.5\n"]
    assert outputs[1][0]["data"] == {"text/plain": ["2"]}
    assert outputs[2][0]["text"] == ["a   b\n", "a   b\n"]


def test_check_accepts_other_numbers_and_rejects_another_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = book(tmp_path)
    notebook.main([str(path)])
    path.write_text(path.read_text().replace("1 2.5", "3 4.5"))
    assert notebook.main(["--check", str(path)]) == 0
    path.write_text(path.read_text().replace("a   b\\n", "a   c\\n"))
    assert notebook.main(["--check", str(path)]) == 1
    assert "-a c" in capsys.readouterr().out


def test_cell_that_raises_fails_the_execution(tmp_path: Path) -> None:
    path = book(tmp_path)
    path.write_text(path.read_text().replace("one + 1", "raise ValueError(one)"))
    with pytest.raises(ValueError, match="1"):
        notebook.main([str(path)])
