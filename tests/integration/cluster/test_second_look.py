"""hack/tests.sh fails a stage if a test fails twice, and names a test that passes alone."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

TESTS = """
from pathlib import Path

def test_green():
    pass

def test_flaky():
    seen = Path(__file__).with_name("seen")
    if not seen.exists():
        seen.touch()
        raise AssertionError("beside others")
"""
LOCKED = """
import fcntl
from pathlib import Path

import pytest

def test_flaky():
    here = Path(__file__).parent
    again = (here / "seen").exists()
    (here / "seen").touch()
    with (here / "build/tests.lock").open() as lock:
        if not again:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_NB | (fcntl.LOCK_SH if again else fcntl.LOCK_EX))
    assert again, "beside others"
"""
RED = "def test_red_{0}():\n    raise AssertionError('always')\n"


@pytest.fixture
def stage(tmp_path):
    """A function that runs a stage over the given source in a tree with the script and this tree's .venv."""
    (tmp_path / "hack").mkdir()
    (tmp_path / "hack/tests.sh").write_text((ROOT / "hack/tests.sh").read_text())
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")

    def run(source: str, **env: str) -> tuple[int, str]:
        (tmp_path / "test_it.py").write_text(source)
        command = ["bash", "hack/tests.sh", "fast", "--durations=1", "--", "test_it.py"]
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST") and key != "STRICT"}
        done = subprocess.run(
            command, cwd=tmp_path, env={**clean, **env}, capture_output=True, text=True, timeout=120, check=False
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_test_that_passes_alone_is_named_flaky_and_passes_the_stage(stage, tmp_path):
    code, output = stage(TESTS)
    assert code == 0, output
    flaky = "FLAKY (failed beside other tests, passed alone): test_it.py::test_flaky"
    assert flaky in output
    assert (tmp_path / "build/flaky.txt").read_text().splitlines() == [flaky]


def test_second_look_excludes_the_first_runs_of_other_stages(stage):
    code, output = stage(LOCKED)
    assert code == 0, output
    assert "FLAKY" in output


def test_test_that_fails_twice_fails_the_stage(stage):
    code, output = stage(TESTS + RED.format(1))
    assert code == 1, output
    assert "FLAKY" not in output
    assert output.count("always") >= 2


def test_eight_failed_tests_get_a_second_look(stage):
    code, output = stage("".join(RED.format(number) for number in range(8)))
    assert code == 1, output
    assert "second look" in output


def test_nine_failed_tests_get_no_second_look(stage):
    code, output = stage("".join(RED.format(number) for number in range(9)))
    assert code == 1, output
    assert "second look" not in output


def test_strict_run_has_no_second_look(stage):
    code, output = stage(TESTS, STRICT="1")
    assert code == 1, output
    assert "second look" not in output


@pytest.mark.parametrize("mark", ["controlplane", "e2e"])
def test_stage_collects_the_folders_of_all_tests_with_its_mark(mark):
    makefile = (ROOT / "Makefile").read_text()
    (folders,) = re.findall(rf'\(TESTS\) {mark} .* -m "{mark} and not thorough" (tests/.+)', makefile)
    marked = [file for file in (ROOT / "tests").rglob("*.py") if f"mark.{mark}" in file.read_text()]
    assert len(marked) >= 3
    assert [file for file in marked if not any(file.is_relative_to(ROOT / each) for each in folders.split())] == []


def test_stage_that_collects_nothing_fails(stage):
    assert stage("")[0] == 5
