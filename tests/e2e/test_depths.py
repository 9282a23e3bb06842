"""The three depths of adoption, as in the examples: each job completes.

Jobs with our lines in the script also survive a killed worker. Every job is its file in
examples/, with a ConfigMap that is created as the first lines of the file describe.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.e2e.kit import Job, Kubectl, Object, steps_by_attempt, wait_until
from tests.e2e.test_recovery import KILL_WORKER

STOP_WORKER = KILL_WORKER.replace("SIGKILL", "SIGSTOP")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MOUNTED = {
    "torchrun-plain": ("torchrun-plain", "torchrun_plain/train.py"),
    "own-loop": ("own-loop", "own_loop/train.py"),
    "trainer": ("trainer", "trainer/train.py"),
    "dtj-train": ("train", "train.yaml"),
}
"""ConfigMap and file of each job."""

Example = Callable[..., Job]


@pytest.fixture
def example(kubectl: Kubectl, shared_root: Path, images: dict[str, str]) -> Example:
    """Starts the example of this name, under another name if one is given."""

    def start(name: str, job: str | None = None, image: str = "trainer") -> Job:
        config_map, file = MOUNTED[name]
        if kubectl.get("configmap", config_map) is None:
            kubectl("create", "configmap", config_map, f"--from-file={EXAMPLES / file}")
        spec: Object = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())["spec"]
        return Job(kubectl, job or name, shared_root / kubectl.namespace, spec | {"image": images[image]}).create()

    return start


def assert_learned(job: Job) -> None:
    """Checks that the job is Complete, and that the status shows its progress."""
    status = job.wait("Complete", 150)["status"]
    progress = status["progress"]
    assert progress["step"] == progress["totalSteps"] == status["checkpoint"]["step"] >= 400
    assert progress["loss"] < 0.5 < 1.5 < job.losses()[10]
    assert progress["samplesPerSecond"] > 0


def assert_a_killed_worker_changes_no_loss(calm: Job, killed: Job) -> None:
    """Kills rank 1 of `killed` with SIGKILL once it has a checkpoint, and waits until both jobs complete.

    The losses of both must be equal, bit for bit.
    """
    wait_until("a checkpoint", lambda: [*killed.folder.glob("step-*/manifest.json")], timeout=150, every=0.05)
    killed.kubectl("exec", f"{killed.name}-1", "-c", "trainer", "--", "python3", "-c", KILL_WORKER)
    assert_learned(killed)
    status = killed.get()["status"]
    assert status["restarts"]["counted"] == 1
    assert any(failure.get("signal") == "SIGKILL" for failure in status["failures"])
    runs = [steps for _, steps in steps_by_attempt(killed.records())]
    assert len(runs) >= 2
    assert runs[-1][0] > 50, "the script did not start over"
    for before, after in itertools.pairwise(runs):
        assert after[0] <= before[-1] + 10, "a step is missing: every tenth is logged"
    assert_learned(calm)
    assert killed.losses() == calm.losses()
    assert sorted(calm.losses())[:40] == list(range(10, 401, 10))


def test_plain_torchrun_script_and_own_loop_recover(example: Example) -> None:
    """The plain script runs in an image of Python and torch, and imports nothing of ours.

    The agent is put into the pod.
    """
    assert "dtj_" not in (EXAMPLES / MOUNTED["torchrun-plain"][1]).read_text()
    plain = example("torchrun-plain", image="torch")
    assert_a_stopped_rank_is_named(plain)
    killed, calm = example("own-loop", "own-loop-killed"), example("own-loop")
    assert_a_killed_worker_changes_no_loss(calm, killed)
    plain.wait("Complete", 150)
    assert (plain.folder / "checkpoint.pt").exists()


def assert_a_stopped_rank_is_named(plain: Job) -> None:
    """Sends SIGSTOP to rank 1 once the script trains, and waits until the job, whose steps are counted, completes."""

    def trains() -> bool:
        return "step=20 " in plain.kubectl.try_("logs", f"{plain.name}-0", "-c", "trainer").out

    wait_until("the first steps of attempt 1", trains, timeout=150)
    plain.kubectl("exec", f"{plain.name}-1", "-c", "trainer", "--", "python3", "-c", STOP_WORKER)
    status = plain.wait("Complete", 150)["status"]
    failure = status["failures"][-1]
    assert (failure["reason"], failure["rank"], failure["pod"]) == ("WorkerHung", 1, f"{plain.name}-1"), failure
    assert (status["attempt"], status["progress"]["stepSource"]) == (2, "Optimizer")
    print("\n", failure["message"], status["recoveries"][-1]["seconds"])


def test_whole_trainer_recovers_from_a_script_and_from_a_config(example: Example) -> None:
    killed, calm = example("trainer", "trainer-killed"), example("trainer")
    configured = example("dtj-train")
    assert_a_killed_worker_changes_no_loss(calm, killed)
    assert_learned(configured)
