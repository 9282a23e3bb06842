"""Whole files, as people have them, and the job and notes that `dtj convert --comments` makes of each.

`DTJ_WRITE_GOLDEN=1` writes the expected files again, for a change that is meant: read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from dtj.main import main
from dtj_core import api
from tests.unit.client.converted import IMAGE

FOLDER = Path(__file__).parent / "convert_golden"
NAMES = ("pytorchjob.yaml", "trainjob.yaml", "train.sbatch", "run.sh")


@pytest.mark.parametrize("name", NAMES)
def test_whole_file_becomes_the_expected_job_and_notes(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(FOLDER)
    flags = [] if name.endswith(".yaml") else ["--image", IMAGE]
    assert main(["convert", "--comments", *flags, name]) == 0
    expected = FOLDER / f"{name}.expected"
    out = capsys.readouterr().out
    if os.environ.get("DTJ_WRITE_GOLDEN"):
        expected.write_text(out)
    assert out == expected.read_text()
    assert api.violations(yaml.safe_load(out)) == ()
