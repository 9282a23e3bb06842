"""Tests of the decision whether a worker's command can be forked from a warm process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dtj_agent.workers.python_command import PythonCommand, Unsuitable, parse

TRAINS = "import os\nimport torch, sys\n"


@pytest.mark.parametrize(
    ("command", "options", "target", "is_module"),
    [
        ("python3 -u train.py --lr 1", ["-u"], "train.py", False),
        ("python train.py", [], "train.py", False),
        ("/opt/conda/bin/python3.12 train.py", [], "train.py", False),
        ("python3 -u -m pkg.train -m x", ["-u"], "pkg.train", True),
        (
            "python3 -X faulthandler -W ignore -uB train.py",
            ["-X", "faulthandler", "-W", "ignore", "-uB"],
            "train.py",
            0,
        ),
    ],
)
def test_python_command_is_split_into_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, options: list[str], target: str, is_module: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAINS)
    arguments = tuple(command.split())
    assert parse(arguments) == PythonCommand(arguments[0], options, target, is_module)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("bash -c python3", "the command is bash, not python3"),
        ("torchrun train.py", "the command is torchrun, not python3"),
        ("python3", "the command names no script"),
        ("python3 -c pass", "the command has the option -c"),
        ("python3 -i train.py", "the command has the option -i"),
        ("python3 app.pyz", "the command's script is an archive or bytecode"),
        ("python3 missing.py", ""),
        ("python3 folder", ""),
        ("python3 -m 1x", ""),
        ("python3 standard.py", ""),
    ],
)
def test_other_command_is_started_plainly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name in ("train.py", "app.pyz"):
        (tmp_path / name).write_text(TRAINS)
    (tmp_path / "standard.py").write_text("import os, json as j\nfrom collections import abc\n  import re  # torch\n")
    if command.endswith("standard.py") and sys.version_info < (3, 10):
        return
    assert parse(command.split()) == Unsuitable(why)


@pytest.mark.parametrize(
    "text",
    ["import os, torch", "from lightning import Trainer", "    import numpy", "__import__('a')", "from . import x"],
)
def test_script_that_may_import_more_than_the_standard_library_is_forked(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text("import sys\n" + text)
    assert isinstance(parse(["python3", str(tmp_path / "train.py")]), PythonCommand)
