"""The longest files run first, and the others in the order of their `last` marks, not of their names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import LONGEST

ROOT = Path(__file__).parents[3]


def test_order_is_longest_files_others_then_last_by_number(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = last\n")
    (tmp_path / "test_a.py").write_text(
        "import pytest\n@pytest.mark.last(2)\ndef test_very_last(): ...\n@pytest.mark.last(1)\ndef test_last(): ...\n"
    )
    (tmp_path / "test_b.py").write_text("def test_second(): ...\ndef test_first(): ...\n")
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer/test_kills.py").write_text("def test_long(): ...\n")
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "tests.conftest", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    names = [line.rpartition("::")[2] for line in done.stdout.splitlines() if "::" in line]
    assert names == ["test_long", "test_second", "test_first", "test_last", "test_very_last"], done.stdout + done.stderr


def test_longest_files_exist() -> None:
    assert [name for name in LONGEST if not list((ROOT / "tests").glob(f"**/{name}"))] == []
