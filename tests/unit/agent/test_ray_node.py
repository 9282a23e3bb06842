"""The Ray node of a pod, with a stand-in for the package `ray`: what is started again, and which workers are forked."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dtj_agent import engines
from dtj_agent.engines import Address
from dtj_agent.ray_node import forks, setup_worker, sockets
from tests.lib.waiting import wait_until
from tests.unit.agent.test_engines import place

ROOT = Path(__file__).parents[3]
NODE = """
import json, os, signal, subprocess, sys, time
from ray import actor
from ray._private import ray_constants
from ray._private.node import Node
from ray._raylet import UniqueID

actor.ActorClassID.from_random()  # as an import of Ray's that makes a class an actor

def main():
    raylet = subprocess.Popen(["./raylet", "1000"])
    helper = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    with open("starts", "a") as file:
        started = {"arguments": sys.argv, "raylet": raylet.pid, "helper": helper.pid, "own": os.getpid()}
        started.update(script=ray_constants.SETUP_WORKER_FILENAME, id=UniqueID.from_random().hex())
        names = ("plasma_store", "raylet")
        started["sockets"] = [Node()._prepare_socket_file(None, default_prefix=name) for name in names]
        print(json.dumps(started), file=file)
    if "--head" in sys.argv:
        sys.exit(0)
    signal.signal(signal.SIGTERM, lambda *_: (raylet.terminate(), sys.exit(0)))
    time.sleep(1000)
"""
WORKER = """
import json, os, sys
if __name__ != "__main__": raise ImportError("a program")
found = {"arguments": sys.argv, "A": os.environ.get("A"), "folder": os.getcwd(), "main": __name__, "file": __file__}
found.update(alone=os.getpgid(0) == os.getpid(), modules="modules" in sys.modules, parent=os.getppid())
print(json.dumps(found), flush=True)
if "sleep" in sys.argv:
    import time
    time.sleep(1000)
sys.exit(int(sys.argv[-1]))
"""
# As Ray's generator, which is seeded at its first use.
IDS = """
import os, random

class UniqueID(bytes):
    generator = None

    @classmethod
    def from_random(cls):
        cls.generator = cls.generator or random.Random(os.urandom(8))
        return cls(cls.generator.randbytes(16))

    def binary(self):
        return bytes(self)

    @staticmethod
    def size():
        return 16
"""
NAMES = """
class Node:
    def _prepare_socket_file(self, socket_path, default_prefix):
        return socket_path or default_prefix
"""
FILES = {
    "ray/__init__.py": "",
    "ray/scripts/__init__.py": "",
    "ray/scripts/scripts.py": NODE,
    "ray/_private/__init__.py": "",
    "ray/_private/node.py": NAMES,
    "ray/actor.py": "from ray._raylet import UniqueID as ActorClassID",
    "ray/_raylet.py": IDS,
    "ray/_private/ray_constants.py": "SETUP_WORKER_FILENAME = 'setup_worker.py'",
    "ray/_private/utils.py": "import os\nupdate_envs = os.environ.update",
    "ray/_private/workers/setup_worker.py": "import sys\nprint('own', sys.argv[1:])",
    "ray/_private/workers/default_worker.py": WORKER,
    "modules.py": "import ray.actor\nray.actor.ActorClassID.from_random()",
    "drawing.py": "import ray._raylet\nray._raylet.UniqueID.from_random()",
}


class Pod:
    """A pod's rank, and the head that it is to join."""

    def __init__(self, folder: Path, preload: str = "modules", temporary: str = "/tmp", version: str = "") -> None:
        self.folder = folder
        self.head = socket.create_server(("127.0.0.1", 0))
        address: Address = ("127.0.0.1", self.head.getsockname()[1])
        hidden = {module.partition(".")[0] + ".py": "" for module in forks.MODULES}  # they take seconds
        installed = {f"ray-{version}.dist-info/METADATA": f"Name: ray\nVersion: {version}\n"} if version else {}
        for name, text in (FILES | hidden | installed).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        shutil.copy(shutil.which("sleep") or "", folder / "raylet")
        engine, inherited = engines.load("ray"), {"DTJ_PRELOAD": preload}
        where = place(members=(address, ("127.0.0.1", 1)), local_rank=0)
        environ = {**os.environ, **engine.environment(where, inherited), "PYTHONPATH": str(folder), "TMPDIR": temporary}
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                engine.command(where, [sys.executable, "train.py"]), cwd=folder, env=environ, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def starts(self) -> list[dict[str, Any]]:
        path = self.folder / "starts"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_start(self, number: int) -> dict[str, Any]:
        wait_until(f"start {number}", lambda: len(self.starts()) == number, timeout=60)
        return self.starts()[-1]

    def setup(self, *arguments: str, context: str = "{}") -> subprocess.Popen[str]:
        """Starts the script that a raylet runs for a worker."""
        script = self.wait_start(1)["script"]
        program = str(self.folder / "ray/_private/workers/default_worker.py")
        flags = ["--language=PYTHON", f"--serialized-runtime-env-context={context}"]
        return subprocess.Popen(
            [sys.executable, script, program, *flags, *arguments], cwd=self.folder, stdout=subprocess.PIPE, text=True
        )

    def close(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        for start in self.starts():
            for pid in (start["own"], start["raylet"], start["helper"]):
                if runs(pid):
                    os.kill(pid, signal.SIGKILL)
        self.head.close()


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    found = Pod(tmp_path)
    yield found
    found.close()


def test_node_whose_raylet_is_killed_starts_again_and_nothing_of_the_old_one_is_left(pod: Pod) -> None:
    first = pod.wait_start(1)
    port = str(pod.head.getsockname()[1])
    assert first["arguments"][:5] == [
        "ray", "start", "--block", "--address=127.0.0.1:" + port, "--node-ip-address=127.0.0.1",
    ]  # fmt: skip
    os.kill(first["raylet"], signal.SIGKILL)
    second = pod.wait_start(2)
    assert second["arguments"] == first["arguments"]
    # Ray ends a node that comes back with the id of a lost one.
    assert second["id"] != first["id"]
    assert not any(map(runs, (first["own"], first["raylet"], first["helper"])))
    assert "dtj: the raylet has ended with signal 9" in pod.log
    assert f"the head at 127.0.0.1:{port} answers, so it is started again (1 of 3 in 600 s)" in pod.log


def test_node_whose_own_process_is_killed_starts_again(pod: Pod) -> None:
    first = pod.wait_start(1)
    os.kill(first["own"], signal.SIGKILL)
    pod.wait_start(2)
    assert not any(map(runs, (first["raylet"], first["helper"])))
    assert "dtj: the Ray node has ended: signal 9; " in pod.log


def test_node_that_dies_repeatedly_is_a_failed_rank(pod: Pod) -> None:
    for number in range(1, 5):
        os.kill(pod.wait_start(number)["raylet"], signal.SIGKILL)
    assert pod.process.wait(60) == 1
    assert "it was started again 3 times in 600 s" in pod.log
    assert len(pod.starts()) == 4


def test_node_without_a_head_is_a_failed_rank(pod: Pod) -> None:
    start = pod.wait_start(1)
    pod.head.close()
    os.kill(start["raylet"], signal.SIGKILL)
    assert pod.process.wait(60) == 1
    assert "does not answer" in pod.log
    assert len(pod.starts()) == 1


def test_sockets_of_each_node_have_names_of_their_own(pod: Pod) -> None:
    # Two nodes of a machine that start at the same time would take the same ones.
    start = pod.wait_start(1)
    assert start["sockets"] == [f"plas.{start['own']}", f"rayl.{start['own']}"]


@pytest.mark.parametrize("missing", ["the method", "the class", "the module"])
def test_version_that_names_sockets_otherwise_is_left_alone(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    node = types.ModuleType("ray._private.node")
    if missing == "the method":
        node.Node = type("Node", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray._private.node", None if missing == "the module" else node)
    sockets.use_own_names()


def test_sigterm_ends_the_node_gracefully_and_starts_none(pod: Pod) -> None:
    start = pod.wait_start(1)
    pod.process.terminate()
    assert pod.process.wait(60) == 0
    assert not any(map(runs, (start["own"], start["raylet"], start["helper"])))
    assert len(pod.starts()) == 1


def test_node_ends_with_the_process_that_started_it(pod: Pod) -> None:
    start = pod.wait_start(1)
    pod.process.kill()
    wait_until("the node has ended", lambda: not runs(start["own"]), timeout=10)


def test_worker_is_forked_with_the_modules_that_are_imported_ahead(pod: Pod) -> None:
    worker = pod.setup("--x=1", "3", context='{"env_vars": {"A": "b"}, "command_prefix": []}')
    assert worker.stdout is not None
    found = json.loads(worker.stdout.readline())
    assert worker.wait(60) == 3
    program = str(pod.folder / "ray/_private/workers/default_worker.py")
    assert found["parent"] != worker.pid
    assert found["arguments"] == [program, "--x=1", "3"]
    assert {name: found[name] for name in ("A", "folder", "main", "file")} == {
        "A": "b", "folder": str(pod.folder), "main": "__main__", "file": program,
    }  # fmt: skip
    assert found["alone"]
    assert found["modules"]


def test_fork_ends_with_the_process_that_asked_for_it(pod: Pod) -> None:
    worker = pod.setup("sleep", "0")
    assert worker.stdout is not None
    worker.stdout.readline()
    worker.kill()
    assert worker.stdout.read() == ""  # at the end of all who could write


def test_worker_with_other_needs_is_started_by_rays_own_script(pod: Pod) -> None:
    worker = pod.setup("3", context='{"env_vars": {"OMP_NUM_THREADS": "2"}}')
    assert worker.communicate(timeout=60)[0].startswith("own [")


def test_no_worker_is_forked_from_a_process_whose_imports_have_drawn_ids(tmp_path: Path) -> None:
    """Two workers would draw the same ids for their tasks."""
    pod = Pod(tmp_path, "drawing")
    try:
        for _ in range(2):
            assert pod.setup("3").communicate(timeout=60)[0].startswith("own [")
        assert pod.log.count("an import has drawn from Ray's random numbers") == 1
    finally:
        pod.close()


@pytest.mark.parametrize(
    ("version", "preload", "is_forked"),
    [("2.60.1", "", True), ("2.61.0", "", False), ("2.61.0", "modules", True), ("", "", False)],
)
def test_workers_of_a_version_that_was_tried_or_of_a_job_with_preload_are_forked(
    version: str, preload: str, is_forked: bool, tmp_path: Path
) -> None:
    pod = Pod(tmp_path, preload, version=version)
    try:
        assert (pod.wait_start(1)["script"] != "setup_worker.py") == is_forked
    finally:
        pod.close()


def test_version_of_the_image_was_tried() -> None:
    pinned = (ROOT / "requirements/engines/ray.in").read_text()
    assert re.findall(r"ray\[train\]==(\d+\.\d+)", pinned) == list(forks.TRIED)


def test_node_starts_without_forks_where_no_socket_can_be(tmp_path: Path) -> None:
    """The path of a socket has at most 107 bytes."""
    temporary = tmp_path / ("t" * 110)
    temporary.mkdir()
    pod = Pod(tmp_path, temporary=str(temporary))
    try:
        assert pod.wait_start(1)["script"] == "setup_worker.py"  # Ray's own
        assert "dtj: Ray's workers are not forked: AF_UNIX path too long" in pod.log
    finally:
        pod.close()


PYTHON = "--language=PYTHON"
CONTEXTS: list[tuple[str, str, dict[str, str] | None]] = [
    (PYTHON, "{}", {}),
    (PYTHON, '{"env_vars": {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "1"}}', {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "1"}),
    (PYTHON, '{"env_vars": {"CUDA_VISIBLE_DEVICES": "1"}}', None),
    (PYTHON, '{"env_vars": {"PYTHONPATH": "/x"}}', None),
    (PYTHON, '{"env_vars": {"RAY_BACKEND_LOG_LEVEL": "debug"}}', None),
    (PYTHON, '{"py_executable": "/other/python"}', None),
    (PYTHON, json.dumps({"py_executable": sys.executable}), {}),
    (PYTHON, '{"command_prefix": ["numactl"]}', None),
    (PYTHON, '{"override_worker_entrypoint": "/x"}', None),
    (PYTHON, '{"a_field_of_a_later_version": 1}', None),
    ("--language=JAVA", "{}", None),
]


@pytest.mark.parametrize(("language", "context", "expected"), CONTEXTS)
def test_only_a_worker_with_plain_variables_can_be_forked(
    language: str, context: str, expected: dict[str, str] | None
) -> None:
    assert setup_worker.variables(["p.py", f"--serialized-runtime-env-context={context}", language]) == expected
