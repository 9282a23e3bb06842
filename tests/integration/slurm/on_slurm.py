"""Jobs of `dtj submit --slurm` on a real Slurm of three nodes. `make test-slurm` runs these tests."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj.local import processes
from dtj.main import main
from dtj_contract import names
from tests.integration.slurm.cluster import SlurmCluster
from tests.lib.waiting import wait_until

pytestmark = pytest.mark.timeout(1800)
WORKER = Path(__file__).parents[2] / "unit" / "client" / "worker.py"
# Two processes import torch at once, on a machine that may be busy.
SLOW = 600
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with SlurmCluster(tmp_path_factory.mktemp("slurm"), nodes=3) as cluster:
        yield cluster


class Submitted:
    """A job of Slurm."""

    def __init__(self, cluster: SlurmCluster, number: str, name: str, volumes: Path) -> None:
        self.cluster = cluster
        self.number = number
        self.folder = volumes / "shared" / "default" / name
        self._log = cluster.folder / f"{name}-{number}.out"

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def wait_for_line(self, text: str) -> None:
        self.wait_until(f"the log has {text}", lambda: re.search(text, self.log()))

    def wait_until(self, what: str, condition: Callable[[], Any]) -> Any:
        return wait_until(what, condition, timeout=SLOW, every=0.2, detail=self.log)

    def wait_for_end(self) -> str:
        """Returns the state in which the job ended."""

        def ended() -> str:
            state = self.cluster.state(self.number)
            return state if state in ENDED else ""

        return str(self.wait_until("the job ends", ended))

    def processes(self, module: str) -> dict[int, int]:
        """Returns the processes that run a module of Python, by the number of their node."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and f"\0-m\0{module}" in _read(entry / "cmdline"):
                env = processes.environment(int(entry.name))
                if env.get("SLURM_JOB_ID") == self.number and "RANK" not in env and "SLURM_NODEID" in env:
                    found[int(env["SLURM_NODEID"])] = int(entry.name)
        return found

    def agents(self) -> dict[int, int]:
        return self.processes("dtj_agent")

    def pods(self) -> dict[int, int]:
        return self.processes("dtj.slurm.pod")

    def worker(self, rank: int) -> int:
        """Returns the process of a rank."""
        running = processes.workers(f"slurm{self.number}-")
        return next(pid for ranks in running.values() for each, pid in ranks.items() if each == rank)

    def only_step(self) -> int:
        """Returns the step of the only checkpoint that was saved."""
        steps = self.steps()
        assert len(steps) == 1, (steps, self.log())
        return steps[0]

    def steps(self) -> list[int]:
        """Returns the checkpoints by their steps."""
        return sorted(int(path.parent.name[5:]) for path in self.folder.glob("step-*/manifest.json"))


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""


Submit = Callable[..., Submitted]


@pytest.fixture
def submit(cluster: SlurmCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Submit]:
    """Hands jobs to sbatch, and cancels those that are left after the test."""
    made: list[Submitted] = []

    def submit(name: str, *flags: str, **spec: Any) -> Submitted:
        checkpoint = {"volume": {"claimName": "shared"}, "everySteps": 5}
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name},
            "spec": {"replicas": 2, "image": "none", "backend": "gloo", "checkpoint": checkpoint} | spec,
        }
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(body))
        capsys.readouterr()
        written = ["submit", "--slurm", str(tmp_path / "job.yaml"), "--volumes-dir", str(tmp_path / "volumes")]
        assert main(written) == 0
        (tmp_path / "job.sbatch").write_text(capsys.readouterr().out)
        printed = cluster.run("sbatch", "--parsable", *flags, str(tmp_path / "job.sbatch"))
        made.append(Submitted(cluster, printed.strip(), name, tmp_path / "volumes"))
        return made[-1]

    yield submit
    for job in made:
        if cluster.state(job.number) not in ENDED:
            cluster.run("scancel", job.number)
            job.wait_for_end()


def worker(steps: int, *flags: str) -> dict[str, Any]:
    """Returns the entrypoint of a script without torch, which holds where the test wants."""
    return {"script": str(WORKER), "args": [str(steps), *flags]}


SLOWLY = ("--step-seconds", "0.2")
"""The second attempt still runs when its agents are looked for."""
SAVING = worker(100_000, "--saves", "--step-seconds", "0.1")
RARELY = {"volume": {"claimName": "shared"}, "everySteps": 1_000_000}


def digits(steps_seconds: float, epochs: int) -> dict[str, Any]:
    """Returns the entrypoint of a training of 22 or 23 steps an epoch."""
    args = ["--epochs", str(epochs), "--step-time-ms", str(int(steps_seconds * 1000)), "--log-every", "1"]
    return {"module": "dtj_trainer.examples.digits", "args": args}


def test_job_completes(submit: Submit) -> None:
    job = submit("plain", entrypoint=worker(20))
    assert job.wait_for_end() == "COMPLETED", job.log()
    assert job.steps()[-1] == 20
    assert "step 20 loss" in job.log()


def test_killed_rank_recovers_in_place(submit: Submit) -> None:
    job = submit("rank", entrypoint=worker(20, "--hold-at", "12", *SLOWLY))
    job.wait_for_line("step 12 loss")
    agents = job.agents()
    assert sorted(agents) == [0, 1]
    os.kill(job.worker(1), signal.SIGKILL)
    job.wait_for_line("attempt 2 starts")
    assert job.agents() == agents
    assert job.wait_for_end() == "COMPLETED", job.log()
    assert "step 11 loss" in job.log().partition("attempt 2 starts")[2], "it resumed from step 10"


def test_killed_agent_is_started_again(submit: Submit) -> None:
    job = submit("agent", entrypoint=worker(20, "--hold-at", "12", *SLOWLY))
    job.wait_for_line("step 12 loss")
    agents, pods = job.agents(), job.pods()
    os.kill(agents[1], signal.SIGKILL)
    job.wait_for_line("attempt 2 starts")
    assert job.agents()[0] == agents[0], "the survivor waits in place"
    assert job.pods() == pods
    assert job.wait_for_end() == "COMPLETED", job.log()
    assert "starting them again" not in job.log()


def test_killed_task_starts_all_pods_again(submit: Submit) -> None:
    job = submit("task", entrypoint=worker(20, "--hold-at", "12"))
    job.wait_for_line("step 12 loss")
    os.kill(job.pods()[1], signal.SIGKILL)
    assert job.wait_for_end() == "COMPLETED", job.log()
    again = job.log().partition("starting them again")[2]
    assert "step 11 loss" in again, "it resumed from step 10"
    assert "step 10 loss" not in again


def test_permanent_failure_fails_the_job(submit: Submit) -> None:
    job = submit("failing", entrypoint=worker(20, "--fail-at", "3", "--exit-code", "93"))
    assert job.wait_for_end() == "FAILED", job.log()
    assert job.cluster.field(job.number, "ExitCode") == "1:0"
    assert "found a hole at step 3" in job.log()


def test_spare_takes_the_place_of_a_lost_node(cluster: SlurmCluster, submit: Submit) -> None:
    job = submit("spare", entrypoint=worker(20, "--hold-at", "12"), spares=1)
    job.wait_for_line("step 12 loss")
    [lost] = re.findall(r"attempt 1 starts on spare-0, spare-(\d)", job.log())
    node = f"node{int(lost) + 1}"
    cluster.lose(node)
    try:
        assert job.wait_for_end() == "COMPLETED", job.log()
    finally:
        cluster.start_node(node)
        wait_until("the node is back", cluster.is_idle, timeout=120, every=0.5)


def test_command_of_a_container_starts_the_agent(submit: Submit) -> None:
    job = submit("contained", "--export=ALL,DTJ_SLURM_CONTAINER=nice -n 1", entrypoint=worker(20, "--hold-at", "12"))
    job.wait_for_line("step 12 loss")
    rank = job.worker(1)
    assert os.getpriority(os.PRIO_PROCESS, rank) == os.getpriority(os.PRIO_PROCESS, job.pods()[1]) + 1
    os.kill(rank, signal.SIGKILL)
    assert job.wait_for_end() == "COMPLETED", job.log()


def test_sigterm_saves_and_requeue_resumes(cluster: SlurmCluster, submit: Submit) -> None:
    steps = 200
    job = submit("stopped", entrypoint=worker(steps, "--saves", "--step-seconds", "0.1"), checkpoint=RARELY)
    job.wait_for_line("step 20 loss")
    cluster.run("scancel", "--signal=TERM", job.number)
    assert job.wait_for_end() == "FAILED"
    assert cluster.field(job.number, "ExitCode") == "143:0"
    saved = job.only_step()
    assert 20 <= saved < steps

    cluster.run("scontrol", "requeue", job.number)
    wait_until("it runs again", lambda: cluster.state(job.number) == "RUNNING", timeout=60)
    assert job.wait_for_end() == "COMPLETED", job.log()
    assert f"step {saved + 1} loss" in job.log()
    assert job.log().count("step 1 loss") == 1, "it did not begin anew"


def test_training_library_saves_on_all_nodes(cluster: SlurmCluster, submit: Submit) -> None:
    job = submit("digits", entrypoint=digits(0.1, 100), checkpoint=RARELY, warmWorkers="Never")
    job.wait_for_line("step=20 ")
    cluster.run("scancel", "--signal=TERM", job.number)
    assert job.wait_for_end() == "FAILED"
    assert job.only_step() >= 20


def test_time_limit_saves_and_requeues(cluster: SlurmCluster, submit: Submit) -> None:
    template = {"spec": {"terminationGracePeriodSeconds": 40}}
    job = submit("limited", entrypoint=SAVING, checkpoint=RARELY, template=template)
    job.wait_for_line("step 20 loss")
    limit_to_two_minutes(cluster, job)
    job.wait_until("it is requeued", lambda: cluster.field(job.number, "Restarts") == "1")
    saved = job.only_step()
    cluster.run("scontrol", "update", f"JobId={job.number}", "TimeLimit=UNLIMITED")
    job.wait_for_line(f"step {saved + 1} loss")
    assert job.log().count("step 1 loss") == 1, "it did not begin anew"


def test_sigterm_asked_of_sbatch_saves_and_ends(cluster: SlurmCluster, submit: Submit) -> None:
    template = {"spec": {"terminationGracePeriodSeconds": 40}}
    job = submit("asked", "--signal=TERM@60", entrypoint=SAVING, checkpoint=RARELY, template=template)
    job.wait_for_line("step 20 loss")
    limit_to_two_minutes(cluster, job)
    assert job.wait_for_end() == "FAILED", job.log()
    assert cluster.field(job.number, "ExitCode") == "143:0"
    assert cluster.field(job.number, "Restarts") == "0"
    assert job.only_step() >= 20


def limit_to_two_minutes(cluster: SlurmCluster, job: Submitted) -> None:
    """Lets the time of the job be up soon. Slurm looks at its limits twice a minute, and signals at the next look."""
    ran = cluster.run("squeue", "--noheader", "--format=%M", "--jobs", job.number).strip()
    minutes, _, _ = ran.rpartition(":")
    cluster.run("scontrol", "update", f"JobId={job.number}", f"TimeLimit={int(minutes) + 2}")


def test_preempted_job_saves_and_resumes(cluster: SlurmCluster, submit: Submit) -> None:
    job = submit("preempted", entrypoint=SAVING, checkpoint=RARELY)
    job.wait_for_line("step 20 loss")
    urgent = submit("urgent", "--partition=urgent", "--exclusive", entrypoint=worker(20), replicas=3)
    assert urgent.wait_for_end() == "COMPLETED", urgent.log()
    saved = job.only_step()
    job.wait_for_line(f"step {saved + 1} loss")
    assert job.log().count("step 1 loss") == 1, "it did not begin anew"
