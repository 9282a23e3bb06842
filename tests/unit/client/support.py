"""`dtj run` as a process, as a user starts it, and the files that it leaves."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from dtj.local import processes
from hack.cluster.controlplane import ControlPlane
from tests.lib.waiting import TIMEOUT, wait_until

JOBS = "/apis/training.dtj.dev/v1alpha1/namespaces/default/distributedtrainingjobs"
WORKER = Path(__file__).with_name("worker.py")
SCRIPT = Path(__file__).with_name("script.py")
JOB = """\
apiVersion: training.dtj.dev/v1alpha1
kind: DistributedTrainingJob
metadata: {{name: count}}
spec:
  replicas: {replicas}
  processesPerPod: {processes}
  image: unused
  backend: gloo
  entrypoint: {{script: {worker}, args: {args}}}
  checkpoint: {{volume: {{claimName: shared}}, everySteps: {every}, keep: 3}}
  restart: {{maxRestarts: {max_restarts}, windowSeconds: 3600}}
{more}
"""


class Screen:
    """A terminal of 120 columns and 40 rows. A thread reads it, so that no writer blocks."""

    def __init__(self) -> None:
        self._master, self.terminal = os.openpty()
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self._drawn = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)

    def watch(self) -> None:
        """Reads until the last process that has the terminal is gone."""
        os.close(self.terminal)
        self._reader.start()

    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", bytes(self._drawn).decode(errors="replace"))

    def _read(self) -> None:
        try:
            while data := os.read(self._master, 65536):
                self._drawn += data
        except OSError:  # EIO: the other end is closed
            pass
        finally:
            os.close(self._master)


class LocalRun:
    """One `dtj run` in a folder. Its lines go to `stderr`, the job's JSON to `stdout`."""

    def __init__(
        self,
        folder: Path,
        *flags: str,
        job: str | None = None,
        environ: dict[str, str] | None = None,
        tty: bool = False,
        **spec: Any,
    ) -> None:
        self.folder = folder
        self.mark = f"{os.getpid()}-{time.monotonic_ns()}"
        (folder / "job.yaml").write_text(job or job_yaml(**spec))
        command = [
            sys.executable,
            "-m",
            "dtj.main",
            "run",
            "job.yaml",
            "-o",
            "json",
            "--run-dir",
            f"run-{self.mark}",
            *flags,
        ]
        self.out, self.err = folder / f"{self.mark}.out", folder / f"{self.mark}.err"
        self._screen = Screen() if tty else None
        with self.out.open("wb") as out, self.err.open("wb") as err:
            # The variable finds every descendant, independently of how dtj finds them.
            env = {**os.environ, "TEST_RUN": self.mark, "TERM": "xterm", **(environ or {})}
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=self._screen.terminal if self._screen else err,
                start_new_session=True,
            )
        if self._screen:
            self._screen.watch()

    @property
    def run_dir(self) -> Path:
        return self.folder / f"run-{self.mark}"

    def lines(self) -> list[str]:
        return self.err.read_text().splitlines()

    def screen(self) -> str:
        """Returns everything drawn so far on the terminal, without colours and cursor movements."""
        assert self._screen
        return self._screen.text()

    def status(self) -> dict[str, Any]:
        """Returns the job's status as saved in the run folder, or {}."""
        path = self.run_dir / "status.json"
        found: dict[str, Any] = json.loads(path.read_text()).get("status", {}) if path.exists() else {}
        return found

    def until_step(self, step: int) -> None:
        wait_until(
            f"step {step}: {self.lines()[-5:]}", lambda: (self.status().get("progress") or {}).get("step", -1) >= step
        )

    def wait(self, seconds: float = TIMEOUT) -> tuple[int, dict[str, Any]]:
        """Waits for the end. Returns (exit code, the job that -o json printed)."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs after {seconds:g} s:\n{self.err.read_text()}") from None
        text = self.out.read_text()
        return code, json.loads(text) if text else {}

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def living(self) -> dict[int, str]:
        """Returns pid and command line of every living process of this run, dtj itself included."""
        return dict(_marked(f"TEST_RUN={self.mark}".encode()))

    def agents(self) -> dict[int, str]:
        """Returns pid and command line of every agent while dtj lives.

        A process that an agent is starting shows the agent's command line and environment until its exec.
        """
        found = {pid: text for pid, text in self.living().items() if "dtj_agent" in text}
        return {pid: text for pid, text in found.items() if processes.parent(pid) == self.process.pid}

    def end(self) -> None:
        """Ends the run after a test, whatever its result."""
        for pid in self.living():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait(TIMEOUT)

    def losses(self) -> dict[int, str]:
        """Returns the loss of each step as rank 0 printed it, over all attempts.

        A repeated step must have printed the same loss again.
        """
        found: dict[int, str] = {}
        for path in sorted(self.run_dir.glob("*.log")):
            for step, value in re.findall(r"^\[rank 0\] step (\d+) loss (\S+)$", path.read_text(), re.MULTILINE):
                assert found.setdefault(int(step), value) == value
        return found


def job_yaml(
    *,
    steps: int = 60,
    replicas: int = 3,
    processes: int = 1,
    every: int = 10,
    max_restarts: int = 5,
    args: str = "",
    more: str = "",
) -> str:
    arguments = [str(steps), *args.split()]
    return JOB.format(
        replicas=replicas,
        processes=processes,
        every=every,
        max_restarts=max_restarts,
        worker=WORKER,
        args=json.dumps(arguments),
        more=more,
    )


def script_job(*args: str, **volume: object) -> str:
    """Returns a job whose script saves its own files, without reports or checkpoints of ours."""
    job = yaml.safe_load(job_yaml(replicas=2))
    job["spec"]["entrypoint"] = {"script": str(SCRIPT), "args": list(args)}
    if volume:
        job["spec"]["checkpoint"]["volume"] = volume
    return yaml.safe_dump(job)


def _marked(mark: bytes) -> Iterator[tuple[int, str]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue


def set_status(plane: ControlPlane, kind: str | None, **status: Any) -> None:
    """Writes the status of the job `count`, as the operator would."""
    job = plane.request("GET", f"{JOBS}/count")
    conditions = [] if kind is None else [condition(kind)]
    job["status"] = {"phase": kind, "conditions": conditions, **status}
    plane.request("PUT", f"{JOBS}/count/status", job)


def condition(kind: str) -> dict[str, str]:
    message = "rank 1 was ended by SIGSEGV" if kind == "Failed" else "all ranks ended with 0"
    reason = "RestartBudgetSpent" if kind == "Failed" else "AllWorkersSucceeded"
    return {
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
