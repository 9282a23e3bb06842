"""MosaicML Composer on two pods of two ranks: undisturbed as under its own launcher, killed halfway, and failing.

`make test-long` runs this file, in the environment that hack/composer.sh builds.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.jobs import LIMIT, dtj_run, job_file
from tests.frameworks.on_frameworks import environ, processes_of, result

SCRIPT = Path(__file__).with_name("composer_script.py")
LAUNCHER = (sys.executable, "-m", "composer.cli")
ENVIRON = environ(CUDA_VISIBLE_DEVICES="-1")
STEPS, EVERY, KILL_AT = 24, 6, 15
PODS, RANKS = 2, 2
VARIABLES = """
import json, os, sys
with open(f"{sys.argv[1]}/{os.environ['RANK']}.json", "w") as file:
    json.dump(dict(os.environ), file)
"""
"""A script of which each rank writes its variables into the folder."""
pytestmark = [
    pytest.mark.timeout(3 * LIMIT),
    pytest.mark.skipif(
        importlib.util.find_spec("composer") is None, reason="composer is not installed: hack/composer.sh installs it"
    ),
]


def job(folder: Path, warm: str, *args: str, replicas: int = PODS, **variables: str) -> Path:
    """Returns the file of a job of the script, whose folder is this one too."""
    return job_file(
        folder,
        replicas=replicas,
        processesPerPod=PODS * RANKS // replicas,
        image="unused",
        entrypoint={"script": str(SCRIPT), "args": [str(folder), *args]},
        env=[{"name": name, "value": value} for name, value in variables.items()],
        warmWorkers=warm,
        restart={"maxRestarts": 1},
    )


def run(folder: Path, job: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the script's result and the status of its job."""
    status = dtj_run(folder, job, "--run-dir", str(folder / "run"))
    return result(folder), status


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns the result under Composer's own launcher, of as many ranks."""
    folder = tmp_path_factory.mktemp("reference")
    under_composer("-n", str(PODS * RANKS), str(SCRIPT), str(folder))
    return result(folder)


def variables(folder: Path, rank: int) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / f"{rank}.json").read_text())
    return found


def under_composer(*args: str) -> None:
    done = subprocess.run([*LAUNCHER, *args], env=ENVIRON, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("warm", ["Auto", "Never"])
def test_undisturbed_training_ends_as_under_its_own_launcher(
    warm: str, reference: dict[str, Any], tmp_path: Path
) -> None:
    found, status = run(tmp_path, job(tmp_path, warm))
    assert (found["step"], found["resumed"]) == (STEPS, 0)
    assert found["sum"] == pytest.approx(reference["sum"], abs=1e-6)
    assert status["restarts"]["counted"] == 0
    if warm == "Auto":
        assert (status["progress"]["step"], status["progress"]["stepSource"]) == (STEPS, "Optimizer")


@pytest.mark.parametrize(
    ("warm", "replicas", "args"), [("Auto", PODS, ()), ("Never", PODS, ()), ("Auto", 1, ("autoresume",))]
)
def test_killed_training_resumes_from_its_own_checkpoint(
    warm: str, replicas: int, args: tuple[str, ...], reference: dict[str, Any], tmp_path: Path
) -> None:
    """On several nodes with one save_folder, `autoresume` fails by itself: docs/trainer.md."""
    found, status = run(tmp_path, job(tmp_path, warm, *args, replicas=replicas, KILL="3"))
    assert (found["step"], found["resumed"]) == (STEPS, KILL_AT // EVERY * EVERY)
    assert found["sum"] == pytest.approx(reference["sum"], abs=1e-6)
    assert status["restarts"]["counted"] == 1
    assert any(failure["rank"] == 3 and failure["signal"] == "SIGKILL" for failure in status["failures"])


@pytest.mark.parametrize("warm", ["Auto", "Never"])
def test_failed_training_reports_its_own_error_and_leaves_nothing(warm: str, tmp_path: Path) -> None:
    logs: list[str] = []
    status = dtj_run(tmp_path, job(tmp_path, warm, FAIL="1"), "--run-dir", str(tmp_path / "run"), logs=logs, code=1)
    assert (status["phase"], status["restarts"]["counted"]) == ("Failed", 1)
    failure = status["failures"][-1]
    assert (failure["rank"], failure["exitCode"]) == (1, 1)
    assert "ValueError: planted in the training" in failure["message"]
    assert logs[0].count("ValueError: planted in the training") >= 2, "once in the log of each attempt"
    assert not processes_of(tmp_path)


def test_ranks_of_its_launcher_in_the_command_get_all_variables_that_it_sets(tmp_path: Path) -> None:
    """PYTHONUNBUFFERED is the flag -u of the command that the ranks run."""
    script = tmp_path / "variables.py"
    script.write_text(VARIABLES)
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for folder in (theirs, ours):
        folder.mkdir()
    flags = ["-n", str(RANKS), "--world_size", str(PODS * RANKS)]
    for pod in range(PODS):
        place = ["--node_rank", str(pod), "--master_addr", "127.0.0.1", "--master_port", "29500"]
        under_composer(*flags, *place, str(script), str(theirs))
    command = ["composer", *flags, "--node_rank", "0", str(script), str(ours)]
    template = {"spec": {"containers": [{"name": "trainer", "image": "unused", "command": command}]}}
    dtj_run(ours, job_file(ours, replicas=PODS, template=template), "--run-dir", str(ours / "run"))
    for rank in range(PODS * RANKS):
        set_by_composer = variables(theirs, rank).items() - ENVIRON.items()
        assert {"NODE_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"} <= dict(set_by_composer).keys()
        different = dict(set_by_composer - variables(ours, rank).items())
        assert different.keys() <= {"MASTER_ADDR", "MASTER_PORT", "PYTHONUNBUFFERED"}
        assert {"MASTER_ADDR", "MASTER_PORT"} <= variables(ours, rank).keys()
