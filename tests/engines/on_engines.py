"""Engines with their real packages: undisturbed, and with a rank killed halfway, to the same result.

`make test-long` runs this file, in the environments that hack/engines.sh builds.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.recovery import logbook
from benchmarks.recovery.learning import has_learned
from tests.engines.marks import GO_SECONDS, KILL_AT
from tests.lib.launchers import misread, parser_of

HERE = Path(__file__).parent
RUN = (sys.executable, "-m", "dtj.main", "run", "--plain", "-o", "json", "--logs")
LIMIT = 600
STEPS, EVERY = 24, 4
pytestmark = pytest.mark.timeout(3 * LIMIT)
RAY = "ray with its TorchTrainer"
# Engine, package, and the argument of the engine's script.
KINDS = {
    "deepspeed with ZeRO 2": ("deepspeed", "deepspeed", "2"),
    "jax with its own file": ("jax", "jax", "npz"),
    "jax with orbax": ("jax", "orbax.checkpoint", "orbax"),
    "horovod with torch": ("horovod", "horovod", "torch"),
    "horovod with an elastic state": ("horovod", "horovod", "elastic"),
    RAY: ("ray", "ray", "train"),
    "tensorflow with its CheckpointManager": ("tensorflow", "tensorflow", "manager"),
}
MIRRORED = "tensorflow with the mirrors of one process"
SINGLE = {MIRRORED: ("tensorflow", "tensorflow", "mirrored")}
"""Trainings of one rank."""
ELASTIC = "ray with two to four workers"
TUNER = "ray with its Tuner"
OTHERS = {ELASTIC: ("ray", "ray", "elastic"), TUNER: ("ray", "ray", "tune")}
"""Trainings that not every test fits."""
SCRIPTS = {TUNER: "ray_tune"}
"""Those with a script of their own."""
LEARNING = [kind for kind, (engine, _, _) in KINDS.items() if engine in ("jax", "tensorflow")]
"""Engines whose warm process begins with nothing, and learns the framework."""
LAST_RANK = {"ray": "1"}
"""The last of two pods' ranks, where a pod does not have two."""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    package = KINDS[name][1]
    if importlib.util.find_spec(package.partition(".")[0]) is None:
        pytest.skip(f"{package} is not installed: hack/engines.sh installs it")
    return name


def spec(kind: str, scripts: str, folder: str, **variables: object) -> dict[str, Any]:
    """Returns the spec of a job on two pods of two ranks, whose script lies in `scripts` and writes to `folder`."""
    engine, _, argument = (KINDS | SINGLE | OTHERS)[kind]
    size = 1 if kind in SINGLE else 2
    # Horovod sums tensors together that are ready at the same time, so the order of additions is chance.
    variables = {"HOROVOD_FUSION_THRESHOLD": 0, **variables}
    return {
        "replicas": size,
        "processesPerPod": size,
        "engine": engine,
        "entrypoint": {"script": f"{scripts}/{SCRIPTS.get(kind, engine)}_script.py", "args": [argument, folder]},
        "env": [{"name": name, "value": str(value)} for name, value in variables.items()],
        "restart": {"maxRestarts": 1},
    }


def result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def assert_same(found: dict[str, Any], reference: dict[str, Any]) -> None:
    """Checks that a disturbed training ended with the weights and the loss of an undisturbed one."""
    assert (found["world"], found["step"]) == (4, STEPS)
    assert found["sum"] == pytest.approx(reference["sum"], abs=1e-9)
    assert found["loss"] == pytest.approx(reference["loss"], abs=1e-9)


def train(kind: str, folder: Path, kill: str = "", **variables: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the result and the job's status. `kill`: the rank that kills itself."""
    job = {
        "apiVersion": "training.dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": (KINDS | SINGLE | OTHERS)[kind][0]},
        "spec": {"image": "unused", **spec(kind, str(HERE), str(folder), KILL=kill, **variables)},
    }
    folder.mkdir(parents=True)
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    done = subprocess.run(
        [*RUN, "--run-dir", str(folder / "run"), str(folder / "job.yaml")],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}, capture_output=True, text=True, timeout=LIMIT, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return result(folder), json.loads(done.stdout)["status"]


@pytest.fixture(scope="module")
def wholes() -> dict[str, dict[str, Any]]:
    """The results of undisturbed runs."""
    return {}


def whole(kind: str, folder: Path, wholes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    if kind not in wholes:
        wholes[kind], status = train(kind, folder / "whole")
        assert (status["attempt"], status["restarts"]["total"]) == (1, 0)
    return wholes[kind]


def test_four_ranks_in_two_pods_are_one_group(kind: str, tmp_path: Path, wholes: dict[str, dict[str, Any]]) -> None:
    found = whole(kind, tmp_path, wholes)
    assert (found["world"], found["step"], found["resumed"]) == (4, STEPS, 0)


@pytest.mark.parametrize("place", ["first", "last"])
def test_killed_training_ends_with_the_undisturbed_result(
    kind: str, place: str, tmp_path: Path, wholes: dict[str, dict[str, Any]]
) -> None:
    """Rank 0 has the coordinator of JAX and the head of Ray, and is the chief of TensorFlow."""
    rank = "0" if place == "first" else LAST_RANK.get(KINDS[kind][0], "3")
    reference = whole(kind, tmp_path, wholes)
    began = time.monotonic()
    found, status = train(kind, tmp_path / "killed", kill=rank)
    print(f"{kind}, rank {rank}: {time.monotonic() - began:.1f} s, {json.dumps(status.get('recoveries'))}")
    assert_same(found, reference)
    assert found["resumed"] == KILL_AT // EVERY * EVERY
    assert (status["attempt"], status["restarts"]["inPlace"]) == (2, 1)
    assert any(str(failure["rank"]) == rank and failure["signal"] == "SIGKILL" for failure in status["failures"])


@pytest.mark.parametrize("kind", LEARNING, indirect=True)
def test_restart_forks_ranks_with_what_the_first_attempt_imported(
    kind: str, tmp_path: Path, wholes: dict[str, dict[str, Any]]
) -> None:
    reference, folder, go = whole(kind, tmp_path, wholes), tmp_path / "killed", tmp_path / "go"
    assert reference["ahead"] == []

    def wait() -> None:
        end = time.monotonic() + GO_SECONDS
        while not (folder.exists() and has_learned(folder, least=2)) and time.monotonic() < end:
            time.sleep(0.1)
        go.touch()

    thread = threading.Thread(target=wait)
    thread.start()
    found, status = train(kind, folder, kill="3", GO=go)
    thread.join()
    print(f"{kind}: {json.dumps(status.get('recoveries'))}")
    assert found["ahead"] == [KINDS[kind][0]]
    assert_same(found, reference)
    assert (status["attempt"], status["restarts"]["inPlace"]) == (2, 1)


def assert_node_restarted(folder: Path) -> None:
    """Checks that one Ray node was lost, and that the node that replaced it stayed."""
    logs = "".join(path.read_text() for path in (folder / "run").glob("*.log"))
    assert logs.count("dtj: the Ray node has ended: ") == logs.count("so it is started again (1 of 3") == 1


def test_lost_ray_node_comes_back_within_the_attempt(tmp_path: Path, wholes: dict[str, dict[str, Any]]) -> None:
    pytest.importorskip("ray", reason="hack/engines.sh installs it")
    reference = whole(RAY, tmp_path, wholes)
    found, status = train(RAY, tmp_path / "killed", kill="raylet", FAILURES=1)
    assert_same(found, reference)
    assert found["resumed"] == KILL_AT // EVERY * EVERY
    assert (status["attempt"], status["restarts"]["total"]) == (1, 0)
    assert_node_restarted(tmp_path / "killed")


def test_elastic_trainer_of_ray_continues_when_a_ray_node_is_lost(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="hack/engines.sh installs it")
    times = tmp_path / "times"
    found, status = train(ELASTIC, tmp_path / "killed", kill="raylet", FAILURES=2, TIMES=times)
    worlds = [entry.world for entry in logbook.read(times)]
    print(f"{ELASTIC}: {worlds}")
    assert set(worlds[:4]) == {4}
    assert set(worlds) <= {2, 3, 4}
    assert len(worlds) > 4
    assert (found["step"], found["resumed"]) == (STEPS, KILL_AT // EVERY * EVERY)
    assert (status["attempt"], status["restarts"]["total"]) == (1, 0)
    assert_node_restarted(tmp_path / "killed")


def test_tuner_of_ray_finishes_each_trial_though_one_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("ray.tune", reason="hack/engines.sh installs it")
    found, status = train(TUNER, tmp_path / "tuned")
    print(f"{TUNER}: {json.dumps(found)}")
    assert found["best"] == {"rate": 0.1}
    assert found["errors"] == 0
    assert found["steps"] == [8] * 4
    assert found["killed"], "no trial was killed"
    assert found["nodes"] == 2
    assert (status["attempt"], status["restarts"]["total"]) == (1, 0)


def test_mirrored_strategy_of_tensorflow_resumes_in_its_pod(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow", reason="hack/engines.sh installs it")
    reference, _ = train(MIRRORED, tmp_path / "whole")
    found, status = train(MIRRORED, tmp_path / "killed", kill="0")
    assert (reference["world"], reference["step"], found["resumed"]) == (2, STEPS, KILL_AT // EVERY * EVERY)
    assert (found["sum"], found["loss"]) == pytest.approx((reference["sum"], reference["loss"]), abs=1e-9)
    assert (status["attempt"], status["restarts"]["inPlace"]) == (2, 1)


def test_every_flag_of_horovodrun_is_read_as_horovod_reads_it() -> None:
    launch = pytest.importorskip("horovod.runner.launch", reason="hack/engines.sh installs it")
    assert misread("horovodrun", parser_of(launch.parse_args)) == []
