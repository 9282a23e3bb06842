"""examples/tracking.yaml with the real W&B client: rank 0 is killed, and W&B is away at the start or at the end.

`make test-long` runs this file, in the environment that hack/frameworks.sh builds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.frameworks.wandb_server import KEY, WandbServer
from tests.lib.ports import free_port
from tests.lib.waiting import wait_until

pytest.importorskip("wandb", reason="hack/frameworks.sh installs it")

ROOT = Path(__file__).parents[2]
STEPS, EVERY = 200, 20
LIMIT = 600
pytestmark = pytest.mark.timeout(3 * LIMIT)


@dataclass
class Tracked:
    """The example, run in a folder with W&B's client."""

    folder: Path
    url: str

    def start(self, *flags: str, mode: str = "online", **variables: str) -> subprocess.Popen[str]:
        job = yaml.safe_load((ROOT / "examples/tracking.yaml").read_text())
        # The job's variables win over those of the command.
        given = {each["name"]: each["value"] for each in job["spec"]["env"]} | variables
        job["spec"]["env"] = [{"name": name, "value": value} for name, value in given.items()]
        (self.folder / "job.yaml").write_text(yaml.safe_dump(job))
        command = [sys.executable, "-m", "dtj.main", "run", "--plain", "--logs", "-o", "json", *flags]
        folders = ["--run-dir", str(self.folder / "run"), "--volumes-dir", str(self.folder / "volumes")]
        return subprocess.Popen(
            [*command, *folders, str(self.folder / "job.yaml")],
            env=self.environ(mode), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip

    def run(self, *flags: str, mode: str = "online", **variables: str) -> tuple[dict[str, Any], str]:
        """Returns the status of the completed job, and its output."""
        return self.end(self.start(*flags, mode=mode, **variables))

    def end(self, process: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
        try:
            out, err = process.communicate(timeout=LIMIT)
        finally:
            process.kill()
        assert process.returncode == 0, out + err
        status: dict[str, Any] = json.loads(out)["status"]
        assert status["progress"]["step"] == STEPS
        return status, out + err

    def environ(self, mode: str) -> dict[str, str]:
        client = {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": self.url, "WANDB_MODE": mode, "HOME": str(self.folder)}
        return {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1", **client}

    def attempts(self) -> list[Path]:
        """Returns W&B's folders in the job's folder on the volume, the oldest first."""
        found = (self.folder / "volumes/shared/default/tracking/wandb").glob("*run-*-*")
        return sorted(found, key=lambda folder: folder.name.removeprefix("offline-"))

    def sync(self, *folders: Path) -> None:
        for folder in folders:
            subprocess.run(
                [sys.executable, "-m", "wandb", "sync", "--include-online", str(folder)],
                env=self.environ("online"), check=False, capture_output=True, timeout=LIMIT, cwd=self.folder,
            )  # fmt: skip

    def assert_no_file_has_the_key(self, output: str) -> None:
        assert KEY not in output
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        assert files
        assert [path for path in files if KEY.encode() in path.read_bytes()] == []


@pytest.fixture
def server() -> Iterator[WandbServer]:
    found = WandbServer()
    yield found
    found.stop()


def assert_one_run_has_every_step(server: WandbServer) -> None:
    assert len(server.rows) == 1, server.rows.keys()
    steps = server.steps(*server.rows)
    assert sorted(set(steps)) == list(range(STEPS))
    assert server.keys == {KEY}


def test_killed_rank_0_continues_its_run(server: WandbServer, tmp_path: Path) -> None:
    tracked = Tracked(tmp_path, server.url)
    status, output = tracked.run("--kill", "worker:0@step=70")
    assert status["restarts"]["counted"] == 1
    [recovery] = status["recoveries"]
    [run] = server.rows
    # The client sends once a second: a kill loses what was logged since.
    assert set(range(recovery["resumedStep"], STEPS)) <= set(server.steps(run)) <= set(range(STEPS))
    assert server.keys == {KEY}
    assert len(tracked.attempts()) == 2
    tracked.assert_no_file_has_the_key(output)


def test_offline_attempts_become_one_run_when_they_are_sent(server: WandbServer, tmp_path: Path) -> None:
    tracked = Tracked(tmp_path, server.url)
    _, output = tracked.run("--kill", "worker:0@step=70", mode="offline")
    assert server.rows == {}
    folders = tracked.attempts()
    assert len(folders) == 2
    assert len({next(folder.glob("*.wandb")).name for folder in folders}) == 1, "the run's id is in the name"
    tracked.sync(*folders)
    assert_one_run_has_every_step(server)
    tracked.assert_no_file_has_the_key(output)


def test_training_completes_offline_where_wandb_gives_no_answer(server: WandbServer, tmp_path: Path) -> None:
    tracked = Tracked(tmp_path, f"http://127.0.0.1:{free_port()}")
    status, output = tracked.run(WANDB_INIT_TIMEOUT="5")
    assert status["restarts"]["total"] == 0
    assert "W&B gives no answer" in output
    tracked.url = server.url
    tracked.sync(*(folder for folder in tracked.attempts() if folder.name.startswith("offline-")))
    assert_one_run_has_every_step(server)


def test_end_waits_for_a_lost_wandb_no_longer_than_the_job_file_has_it(tmp_path: Path) -> None:
    server = WandbServer()
    tracked = Tracked(tmp_path, server.url)
    process = tracked.start(WANDB_FINISH_TIMEOUT="5")

    def stop() -> None:
        try:
            wait_until("W&B has rows", lambda: any(server.rows.values()), timeout=LIMIT)
        finally:
            server.stop()

    stopping = threading.Thread(target=stop)
    stopping.start()
    status, _ = tracked.end(process)
    stopping.join()
    assert status["restarts"]["total"] == 0
    assert set(server.steps(*server.rows)) < set(range(STEPS)), "W&B was lost too late: repeat the test"
    later = WandbServer()
    try:
        tracked.url = later.url
        tracked.sync(*tracked.attempts())
        assert_one_run_has_every_step(later)
    finally:
        later.stop()
