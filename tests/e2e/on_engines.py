"""Engines on kind, each in its image, on 2 pods of 2 ranks: the same scripts as in tests/engines.

`make test-engines-kind` runs this file, and `make test-long` with it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.recovery import logbook
from dtj_contract import names
from hack.images.recipes import ENGINES, ROOT
from tests.e2e.conftest import drop_namespace, make_namespace
from tests.e2e.kit import Job, Kubectl, Object, docker, is_true, wait_until
from tests.engines.on_engines import EVERY, KINDS, LAST_RANK, RAY, STEPS, assert_same, result, spec
from tests.integration.images.conftest import RESTRICTED

FOLDER = ROOT / "tests/engines"
SCRIPTS = [*sorted(FOLDER.glob("*_script.py")), FOLDER / "marks.py", FOLDER / "ahead.py"]
MOUNTED = "/app/scripts"
DISTURBED_AT = 13
"""Every script has saved step 12."""
LIMIT = 400
pytestmark = pytest.mark.timeout(4 * LIMIT)

# Inside the pod: SIGKILL to what the agent started in place of a rank, the Ray node.
KILL_RAY_NODE = """
import os, pathlib, signal
found = 0
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    pid = int(path.parent.name)
    try:
        if pid != os.getpid() and b"dtj_agent.ray_node" in path.read_bytes() and os.getsid(pid) == pid:
            os.kill(pid, signal.SIGKILL)
            found += 1
    except OSError:
        pass
raise SystemExit(found != 1)
"""


@pytest.fixture(scope="session", autouse=True)
def quiet() -> None:
    """Starts no idle job, which only test_idle_job.py needs."""


@pytest.fixture(scope="session")
def engine_image(images: dict[str, str]) -> Callable[[str], str]:
    """Returns the reference of an engine's image, which is built if it does not exist."""
    found: dict[str, str] = {}

    def reference(engine: str) -> str:
        if engine not in found:
            command = [sys.executable, "-m", "hack.images", "engines", engine]
            done = subprocess.run(command, capture_output=True, text=True, timeout=3000, cwd=ROOT)
            assert done.returncode == 0, done.stderr
            found[engine] = done.stdout.strip().partition("=")[2]
        return found[engine]

    return reference


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def namespace(cluster: dict[str, str], shared_root: Path) -> Iterator[Kubectl]:
    kubectl = make_namespace(f"engines-{uuid.uuid4().hex[:4]}", shared_root)
    scripts = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "scripts"}}
    kubectl.apply(scripts | {"data": {path.name: path.read_text() for path in SCRIPTS}})
    yield kubectl
    drop_namespace(kubectl, shared_root)


Start = Callable[..., Job]


@pytest.fixture(scope="module")
def start(namespace: Kubectl, shared_root: Path, engine_image: Callable[[str], str]) -> Start:
    def create(kind: str, how: str, **variables: object) -> Job:
        engine, _, argument = KINDS[kind]
        name = f"{engine}-{argument}-{how}"
        variables = {"TIMES": f"{names.DEFAULT_CHECKPOINT_DIR}/times/{name}", "PYTHONPATH": MOUNTED, **variables}
        folder = f"{names.DEFAULT_CHECKPOINT_DIR}/{namespace.namespace}/{name}"
        template: Object = {
            "spec": {
                # JAX and TensorFlow catch SIGTERM and train on, which must not be to the end.
                "terminationGracePeriodSeconds": 5,
                "containers": [
                    {
                        "name": "trainer",
                        "volumeMounts": [{"name": "scripts", "mountPath": MOUNTED, "readOnly": True}],
                    }
                ],
                "volumes": [{"name": "scripts", "configMap": {"name": "scripts"}}],
            }
        }
        whole = spec(kind, MOUNTED, folder, **variables) | {
            "image": engine_image(engine),
            "checkpoint": {"volume": {"claimName": "shared"}},
            "template": template,
        }
        return Job(namespace, name, shared_root / namespace.namespace, whole).create()

    return create


@pytest.fixture(scope="module")
def undisturbed(kind: str, start: Start) -> Job:
    """Runs the engine's script to Complete."""
    job = start(kind, "whole")
    job.wait("Complete", LIMIT)
    return job


def entries(job: Job) -> list[logbook.Entry]:
    folder = job.shared / "times" / job.name
    return logbook.read(folder) if folder.exists() else []


def until_step(job: Job, step: int) -> None:
    def reached() -> bool:
        found = job.get()
        assert not is_true(found, "Failed"), found["status"]
        return any(each >= step for _, each in logbook.group_steps(entries(job)))

    wait_until(f"{job.name} at step {step}", reached, timeout=LIMIT)


def assert_resumed(job: Job, undisturbed: Job) -> Object:
    """Waits for the end, and checks that the last attempt resumed from the newest checkpoint. Returns the status."""
    status: Object = job.wait("Complete", LIMIT)["status"]
    runs = entries(job)
    newest = max(entry.attempt for entry in runs)
    before = [entry for entry in runs if entry.attempt < newest and entry.steps]
    after = [entry for entry in runs if entry.attempt == newest]
    last = max(entry.steps[-1][1] for entry in before)
    assert last < STEPS, "the disturbance came after the end: repeat the test"
    found = result(job.folder)
    assert_same(found, result(undisturbed.folder))
    assert {entry.steps[0][1] - 1 for entry in after} == {found["resumed"]}
    # The newest checkpoint may have been torn, and then counts for nothing.
    assert found["resumed"] in {last // EVERY * EVERY, (last - 1) // EVERY * EVERY}, last
    seconds = min(entry.steps[0][0] for entry in after) - max(entry.steps[-1][0] for entry in before)
    print(f"\n{job.name}: {seconds:.1f} s from step {last} to {found['resumed'] + 1}, {json.dumps(status['restarts'])}")
    return status


@pytest.mark.parametrize("engine", ENGINES)
def test_image_runs_unprivileged_and_has_rank_but_no_compiler(engine: str, engine_image: Callable[[str], str]) -> None:
    """Runs it as test_images.py runs the others."""
    module = {"horovod": "horovod.torch"}.get(engine, engine)
    script = f"""
import importlib, os, shutil
importlib.import_module("{module}")
from dtj_trainer import rank
assert rank.newest() is None
assert os.getuid() == 65532 and os.path.exists(rank.__cached__)
print([tool for tool in ("cc", "g++", "cmake", "make") if shutil.which(tool)])
"""
    options = [*RESTRICTED, "--tmpfs=/tmp:mode=1777", "--entrypoint=python3"]
    out = docker("run", "--rm", *options, engine_image(engine), "-c", script, timeout=180)
    assert out.splitlines()[-1] == "[]"  # DeepSpeed logs before it


def test_undisturbed_training_completes(undisturbed: Job) -> None:
    found = result(undisturbed.folder)
    assert (found["world"], found["step"], found["resumed"]) == (4, STEPS, 0)
    assert {(entry.rank, entry.world) for entry in entries(undisturbed)} == {(rank, 4) for rank in range(4)}
    assert undisturbed.get()["status"]["restarts"]["total"] == 0


def test_killed_rank_comes_back_by_its_own_checkpoint(undisturbed: Job, kind: str, start: Start) -> None:
    job = start(kind, "killed", PAUSE=1.5)
    until_step(job, DISTURBED_AT)
    pod = f"{job.name}-1"
    inside = ("exec", pod, "-c", "trainer", "--")
    if KINDS[kind][0] == "ray":
        job.kubectl(*inside, "python3", "-c", KILL_RAY_NODE)
    else:
        job.kubectl(*inside, "sh", "-c", f"kill -9 {logbook.newest(entries(job), 3).pid}")
    status = assert_resumed(job, undisturbed)
    assert status["restarts"] == {"total": 1, "inPlace": 1, "pod": 0, "counted": 1}
    failures = [(str(each["rank"]), each["pod"], each["signal"]) for each in status["failures"]]
    assert (LAST_RANK.get(KINDS[kind][0], "3"), pod, "SIGKILL") in failures


@pytest.mark.parametrize("kind", [RAY], indirect=True)
def test_lost_ray_node_comes_back_within_the_attempt(undisturbed: Job, start: Start) -> None:
    job = start(RAY, "raylet", PAUSE=1.5, FAILURES=1)
    until_step(job, DISTURBED_AT)
    pod = f"{job.name}-1"
    kill = "kill -9 $(grep -lsx raylet /proc/[0-9]*/comm | cut -d/ -f3)"
    job.kubectl("exec", pod, "-c", "trainer", "--", "sh", "-c", kill)
    # Read before the job ends: the pod may start its container again then, whose log is another one.
    text = "so it is started again (1 of 3 in 600 s)"
    wait_until(text, lambda: text in job.kubectl("logs", pod, "-c", "trainer"), timeout=LIMIT)
    log = job.kubectl("logs", pod, "-c", "trainer")
    status = job.wait("Complete", LIMIT)["status"]
    found = result(job.folder)
    assert_same(found, result(undisturbed.folder))
    assert found["resumed"] > 0
    assert (status["attempt"], status["restarts"]["total"]) == (1, 0)
    assert "dtj: Ray's workers are forked with " in log


def test_deleted_pod_of_rank_0_is_recreated_and_the_training_resumes(undisturbed: Job, kind: str, start: Start) -> None:
    """This pod has the coordinator of JAX and the head of Ray, and its rank 0 is the chief of TensorFlow."""
    job = start(kind, "deleted", PAUSE=1.5)
    until_step(job, DISTURBED_AT)
    job.kubectl("delete", "pod", f"{job.name}-0", "--wait=false", "--grace-period=1")
    restarts = assert_resumed(job, undisturbed)["restarts"]
    assert restarts["pod"] >= 1
    assert restarts["counted"] == 0, "a deletion never costs budget"


def test_suspended_training_resumes_from_its_checkpoint(undisturbed: Job, kind: str, start: Start) -> None:
    job = start(kind, "suspended", PAUSE=1.5)

    def suspend(value: bool) -> None:
        job.kubectl("patch", "dtj", job.name, "--type=merge", "-p", json.dumps({"spec": {"suspend": value}}))

    until_step(job, DISTURBED_AT)
    suspend(True)
    job.wait("Suspended", LIMIT)
    wait_until("no pod is left", lambda: not job.pods(), timeout=LIMIT)
    suspend(False)
    assert assert_resumed(job, undisturbed)["restarts"]["counted"] == 0
