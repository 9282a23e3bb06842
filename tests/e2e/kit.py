"""Tools of the e2e tests: kubectl on the real cluster, jobs as dicts, and files on the shared volume."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lib import waiting

Object = dict[str, Any]

DTJ = "distributedtrainingjob.training.dtj.dev"
OPERATOR_NAMESPACE = "dtj-system"

# Most conditions are a call of kubectl, and all of them load one API server.
wait_until = functools.partial(waiting.wait_until, every=0.2)


class Timeout(AssertionError):
    """A condition did not come true before its deadline; the message shows what was seen last."""


@dataclass
class Result:
    code: int
    out: str
    err: str


class Kubectl:
    """kubectl bound to one namespace. Every call has a deadline."""

    def __init__(self, namespace: str = "default") -> None:
        self.namespace = namespace

    def try_(self, *args: str, stdin: str | None = None, timeout: float = 60) -> Result:
        done = subprocess.run(
            ["kubectl", "-n", self.namespace, *args],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def __call__(self, *args: str, stdin: str | None = None, timeout: float = 60) -> str:
        result = self.try_(*args, stdin=stdin, timeout=timeout)
        assert result.code == 0, f"kubectl {' '.join(args)}: {result.err}{result.out}"
        return result.out

    def apply(self, *objects: Object) -> None:
        self("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def get(self, kind: str, name: str) -> Object | None:
        result = self.try_("get", kind, name, "-o", "json", "--ignore-not-found")
        assert result.code == 0, result.err
        return json.loads(result.out) if result.out.strip() else None

    def list(self, kind: str, selector: str = "") -> list[Object]:
        args = ["get", kind, "-o", "json"] + (["-l", selector] if selector else [])
        items: list[Object] = json.loads(self(*args))["items"]
        return items


def conditions(job: Object) -> dict[str, Object]:
    return {c["type"]: c for c in job.get("status", {}).get("conditions", [])}


def is_true(job: Object, kind: str) -> bool:
    return conditions(job).get(kind, {}).get("status") == "True"


def leader(operator: Kubectl, other_than: Iterable[str] = ()) -> Object:
    """Returns the pod of the operator that leads, when its uid is none of `other_than`."""

    def found() -> Object | None:
        lease = operator.get("lease", "dtj-operator") or {"spec": {}}
        # An identity is the name of a pod and a number of its process.
        name = (lease["spec"].get("holderIdentity") or "").rpartition("_")[0]
        pod = operator.get("pod", name) if name else None
        return pod if pod and pod["metadata"]["uid"] not in other_than else None

    return wait_until("a pod of the operator leads", found)


@dataclass
class Job:
    """One DistributedTrainingJob of a test, in that test's namespace."""

    kubectl: Kubectl
    name: str
    shared: Path
    """The namespace's shared volume on this machine."""
    spec: Object = field(default_factory=dict)

    def create(self) -> Job:
        from dtj_contract import names

        self.kubectl.apply(
            {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": self.name}, "spec": self.spec}
        )
        return self

    def get(self) -> Object:
        job = self.kubectl.get(DTJ, self.name)
        assert job is not None, f"job {self.name} is gone"
        return job

    def wait(self, condition: str, seconds: float) -> Object:
        """Runs kubectl wait, as a user's script would.

        Fails at once when the job has the other terminal condition.
        """
        other = {"Complete": "Failed", "Failed": "Complete"}.get(condition)
        end = time.monotonic() + seconds
        while True:
            result = self.kubectl.try_("wait", f"--for=condition={condition}", f"dtj/{self.name}", "--timeout=5s")
            job = self.get()
            if result.code == 0:
                return job
            assert not (other and is_true(job, other)), f"{self.name} is {other}: {json.dumps(job['status'], indent=1)}"
            if time.monotonic() > end:
                raise Timeout(
                    f"{self.name} not {condition} within {seconds} s: {json.dumps(job.get('status'), indent=1)}"
                )

    def pods(self) -> dict[str, Object]:
        return {p["metadata"]["name"]: p for p in self.kubectl.list("pods", f"training.dtj.dev/job-name={self.name}")}

    @property
    def folder(self) -> Path:
        return self.shared / self.kubectl.namespace / self.name

    def records(self) -> list[Object]:
        """Returns what rank 0 wrote at each step of all attempts: {attempt, step, loss, …}.

        An incomplete last line is omitted.
        """
        path = self.folder / "metrics.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]

    def step(self, attempt: int = 1) -> int:
        """Returns the last step that was done by this attempt or a later one."""
        return max((r["step"] for r in self.records() if "loss" in r and r["attempt"] >= attempt), default=0)

    def until_step(self, step: int, *, attempt: int = 1, seconds: float = 120) -> None:
        """Waits until the training is at `step`, in this attempt or a later one.

        The status is not enough, because its writes are throttled.
        """

        def reached() -> bool:
            job = self.get()
            assert not is_true(job, "Failed"), json.dumps(job["status"], indent=1)
            return self.step(attempt) >= step

        wait_until(f"{self.name} at step {step} of attempt {attempt}", reached, timeout=seconds)

    def losses(self) -> dict[int, float]:
        """Returns the loss of each step as the last attempt that did it wrote it."""
        return {r["step"]: r["loss"] for r in self.records() if "loss" in r}

    def delete(self) -> None:
        self.kubectl("delete", DTJ, self.name, "--wait=true", "--timeout=60s")


def steps_by_attempt(records: list[Object]) -> Iterator[tuple[int, list[int]]]:
    """Returns each attempt with its steps in the order done."""
    attempts: dict[int, list[int]] = {}
    for record in records:
        if "loss" in record:
            attempts.setdefault(record["attempt"], []).append(record["step"])
    yield from sorted(attempts.items())


def docker(*args: str, timeout: float = 90) -> str:
    done = subprocess.run(["docker", *args], capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, f"docker {' '.join(args)}: {done.stderr}"
    return done.stdout


def environment() -> dict[str, str]:
    """Returns the variables that `make cluster-env` prints.

    These variables are KUBECONFIG, PATH and the locations of the shared folder and the audit log.
    """
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "hack.cluster", "env"], capture_output=True, text=True, timeout=60, check=True
    )
    pairs = {}
    for line in done.stdout.splitlines():
        if line.startswith("export "):
            key, _, value = line.removeprefix("export ").partition("=")
            pairs[key] = os.path.expandvars(value.strip("'\""))
    assert "KUBECONFIG" in pairs, f"make cluster-env printed no KUBECONFIG: {done.stdout}"
    return pairs


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
