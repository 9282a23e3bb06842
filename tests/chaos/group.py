"""One group of real agents with their workers, and what a cluster does for it: starts containers, gives new pods."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.recovery import processes
from dtj_contract import names, stack_dump
from tests.chaos.network import Network, inner, outer
from tests.chaos.records import Records
from tests.lib.waiting import wait_until
from tests.unit.agent.warm_site import write_site

HERE = Path(__file__).parent
DEADLINE = 60.0
"""A group that does no step for so many seconds after a fault has hung."""
START_SECONDS = 180.0
END_SECONDS = 90.0
LEFT_SECONDS = 60.0
LOOK_SECONDS = 0.01
LAST_STEPS = 20
"""Steps that a group still does when its training is to end."""
LOG_TAIL = 4000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """The size of a group, and what it trains."""

    script: str
    replicas: int
    processes: int
    step_seconds: float
    is_torch: bool = False
    spares: int = 0
    has_idle_pods: bool = False
    """Whether a pod may be no member of the attempt, so that its loss ends none."""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


PLAIN = Shape(script="plain_script.py", replicas=3, processes=2, step_seconds=0.005)
TORCH = Shape(script="torch_script.py", replicas=2, processes=2, step_seconds=0.01, is_torch=True)
SPARE = dataclasses.replace(PLAIN, spares=1, has_idle_pods=True)
ELASTIC = dataclasses.replace(
    PLAIN,
    has_idle_pods=True,
    environment={names.ENV_MIN_REPLICAS: "2", names.ENV_MAX_REPLICAS: "3", names.ENV_ELASTIC_WAIT: "0.5"},
)
SHAPES = {"plain": PLAIN, "torch": TORCH, "spare": SPARE, "elastic": ELASTIC}


@dataclasses.dataclass
class Pod:
    """One pod: an ordinal that a new life may take over, with another disk, address and shared memory."""

    ordinal: int
    life: int
    process: subprocess.Popen[bytes] | None = None
    is_done: bool = False
    """Whether an agent has exited with 0: it has the job's outcome."""


class Group:
    """The agents of one job. `tend` is the kubelet; nothing is left after `close`."""

    def __init__(
        self, shape: Shape, volume: Path | None = None, program: Sequence[str] = (), **environment: str
    ) -> None:
        """Prepares a group; `volume` is its checkpoint folder, and `program` is put before each agent's command."""
        self.shape, self.program = shape, program
        self.folder = Path(tempfile.mkdtemp(prefix="chaos-"))
        self.volume = volume or self.folder / "volume"
        self.uid, self.mark = f"chaos-{uuid.uuid4().hex[:12]}", uuid.uuid4().hex
        for name in ("log", "volume", "site"):
            (self.folder / name).mkdir()
        (self.folder / "key").write_text("5e" * 32 + "\n")
        (self.folder / "agent-clock").write_text("0")
        if not shape.is_torch:
            write_site(self.folder / "site")
            # The warm process imports the trainer library where there is one, and that needs torch.
            for name in ("__init__", "state", "trainer"):
                path = self.folder / "site/dtj_trainer" / f"{name}.py"
                path.parent.mkdir(exist_ok=True)
                path.touch()
        self.records = Records()
        self.is_ending = False
        self.asked = 0
        """The step to which the training was asked to go."""
        self.pods = {ordinal: Pod(ordinal, 0) for ordinal in range(shape.replicas + shape.spares)}
        self.network = Network(self.agents)
        self.publish_names()
        self._given = {**shape.environment, **environment}

    # --- what a cluster does ----------------------------------------------------------------------

    def start(self) -> None:
        """Starts all agents, and waits for the first steps."""
        for ordinal in self.pods:
            self._start(ordinal)
        self.wait_steps(0, 1, time.monotonic(), START_SECONDS)

    def agents(self) -> dict[int, int]:
        """Returns the process ids of the agents that run."""
        running = ((pod.ordinal, pod.process) for pod in self.pods.values())
        return {ordinal: process.pid for ordinal, process in running if process is not None}

    def tend(self) -> None:
        """Starts the container of each agent that has ended, as a kubelet would.

        Also that of one that has the outcome, while another has not: it may be asked for it.
        """
        ended = [pod for pod in self.pods.values() if pod.process is not None and pod.process.poll() is not None]
        for pod in ended:
            pod.is_done = pod.is_done or (self.is_ending and pod.process.returncode == 0)
        if not all(pod.is_done for pod in self.pods.values()):
            for pod in ended:
                self._clear(pod)
                self._start(pod.ordinal)

    def replace(self, *ordinals: int) -> None:
        """Loses pods with all their processes, and creates others: with a new disk, address and shared memory."""
        self.lose(*ordinals)
        self.create(*ordinals)

    def lose(self, *ordinals: int) -> None:
        """Loses pods with all their processes, their disk and their shared memory."""
        for ordinal in ordinals:
            pod = self.pods[ordinal]
            if pod.process is not None:
                pod.process.kill()
                pod.process.wait()
            self._clear(pod)
            shutil.rmtree(self.snapshots(ordinal), ignore_errors=True)
            shutil.rmtree(self.folder / f"state-{ordinal}-{pod.life}", ignore_errors=True)
            self.pods[ordinal] = Pod(ordinal, pod.life + 1)

    def create(self, *ordinals: int) -> None:
        """Creates pods that were lost, under new addresses."""
        for ordinal in ordinals:
            self._start(ordinal)

    def publish_names(self, but: int | None = None) -> None:
        """Writes the present addresses into the names file; `but` keeps the address of its former life."""
        path = self.folder / "names.json"
        stale = json.loads(path.read_text()) if path.exists() else {}
        now = {f"j-{pod.ordinal}": outer(pod.ordinal, pod.life) for pod in self.pods.values()}
        if but is not None:
            now[f"j-{but}"] = stale[f"j-{but}"]
        path.with_suffix(".new").write_text(json.dumps(now))
        path.with_suffix(".new").replace(path)

    def snapshots(self, ordinal: int) -> Path:
        """Returns the folder of a pod's memory snapshots."""
        return Path(names.SHM_DIR, names.SNAPSHOT_FOLDER % (self.uid, self._tag(self.pods[ordinal]).rpartition("/")[2]))

    def _tag(self, pod: Pod) -> str:
        return f"{self.uid}/{pod.ordinal}.{pod.life}"

    def _clear(self, pod: Pod) -> None:
        """Kills what a container has left, as the end of its cgroup does, and waits until it is gone."""
        tag = self._tag(pod)

        def left() -> list[int]:
            own = [pid for pid, environ in processes.marked(self.mark).items() if environ.get(processes.POD) == tag]
            for pid in own:
                processes.send(pid)
            return own

        wait_until(f"the processes of pod {pod.ordinal} to end", lambda: not left(), timeout=DEADLINE)

    def _start(self, ordinal: int) -> None:
        pod, shape = self.pods[ordinal], self.shape
        self.network.open(ordinal, pod.life)
        port = self.network.port
        outside = {key: value for key, value in os.environ.items() if not key.startswith(("DTJ_", "CHAOS_"))}
        settings = {
            names.ENV_JOB: "j", names.ENV_JOB_UID: self.uid,
            names.ENV_REPLICAS: str(shape.replicas), names.ENV_SPARES: str(shape.spares),
            names.ENV_PROCESSES_PER_POD: str(shape.processes),
            names.ENV_ORDINAL: str(ordinal), names.ENV_POD_NAME: f"j-{ordinal}",
            names.ENV_PEERS: f"j-{{}}:{port}",
            names.ENV_LISTEN: f"{inner(ordinal, pod.life)}:{port}", names.ENV_POD_IP: outer(ordinal, pod.life),
            names.ENV_SECRET_FILE: str(self.folder / "key"),
            names.ENV_STATE_DIR: str(self.folder / f"state-{ordinal}-{pod.life}"),
            names.ENV_TERMINATION_LOG: str(self.folder / f"termination-{ordinal}"),
            names.ENV_CHECKPOINT_DIR: str(self.volume), names.ENV_CHECKPOINT_EVERY: "20",
            names.ENV_MAX_RESTARTS: "100000", names.ENV_MAX_WITHOUT_PROGRESS: "100000",
            names.ENV_GRACE_SECONDS: "1", names.ENV_BACKEND: "gloo",
            names.ENV_DIE_WITH_PARENT: str(os.getpid()), names.ENV_LOCAL_POD: self._tag(pod),
            processes.MARK: self.mark,
            "CHAOS_FOLDER": str(self.folder), "CHAOS_STEP_SECONDS": str(shape.step_seconds),
            "CHAOS_NAMES": str(self.folder / "names.json"), "CHAOS_CLOCK": str(self.folder / "agent-clock"),
            "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TMPDIR": str(self.folder),
        }  # fmt: skip
        if not shape.is_torch:
            # Rank 0 serves MASTER_PORT: without torch there is no client of the agent's store.
            settings |= {"PYTHONPATH": str(self.folder / "site"), "TORCHELASTIC_USE_AGENT_STORE": "False"}
        agent = [sys.executable, str(HERE / "agent_process.py")]
        with open(self.folder / f"agent-{ordinal}.out", "ab") as out:
            pod.process = subprocess.Popen(
                [*self.program, *agent, "--", sys.executable, "-u", str(HERE / shape.script)],
                env={**outside, **settings, **self._given}, cwd=self.folder,
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip

    # --- the processes ----------------------------------------------------------------------------

    def workers(self) -> dict[int, int]:
        """Returns the process id of each rank's newest worker that runs."""
        found: dict[int, tuple[int, int]] = {}
        for pid, environ in processes.marked(self.mark).items():
            if "RANK" in environ and names.ENV_ATTEMPT in environ:
                rank, attempt = int(environ["RANK"]), int(environ[names.ENV_ATTEMPT])
                found[rank] = max(found.get(rank, (0, 0)), (attempt, pid))
        return {rank: pid for rank, (_, pid) in sorted(found.items())}

    def warm(self, ordinal: int) -> list[int]:
        """Returns the warm process of a pod; none while it is started."""
        agent = self.agents().get(ordinal)
        return [
            pid
            for pid in processes.marked(self.mark)
            if processes.parent(pid) == agent and "dtj_agent.warm" in processes.command(pid)
        ]

    def signal(self, number: signal.Signals, *pids: int) -> None:
        """Signals processes that may be gone."""
        for pid in pids:
            processes.send(pid, number)

    # --- waits ------------------------------------------------------------------------------------

    def look(self) -> Records:
        """Tends the agents, and returns all records."""
        self.tend()
        self.records.read(self.folder / "log")
        return self.records

    def wait(self, what: str, condition: Callable[[Records], Any], seconds: float = DEADLINE) -> Any:
        """Waits for a condition while the agents are tended. Raises AssertionError with the end of all output."""
        return wait_until(what, lambda: condition(self.look()), timeout=seconds, every=LOOK_SECONDS, detail=self.output)

    def wait_steps(self, after_attempt: int, steps: int, since: float, seconds: float = DEADLINE) -> float:
        """Waits until an attempt later than `after_attempt` has done group steps, the last of them after `since`.

        Returns the seconds from `since` to the first of them.
        """

        def done(records: Records) -> bool:
            is_later = records.newest > after_attempt and records.last_step > since
            return is_later and records.group_steps.get(records.newest, 0) >= steps

        self.wait(f"{steps} steps after attempt {after_attempt}", done, seconds)
        first = self.records.first_steps[self.records.newest]
        return (first if first > since else time.monotonic()) - since

    def finish(self) -> Records:
        """Ends the training at a step that is still to be done, and waits until each agent has exited with 0."""
        self.is_ending = True
        self.asked = max((one.step for one in self.look().steps), default=0) + LAST_STEPS
        path = self.folder / "finish"
        path.with_suffix(".new").write_text(str(self.asked))
        path.with_suffix(".new").replace(path)
        return self.end()

    def end(self, seconds: float = END_SECONDS) -> Records:
        """Waits until each agent has exited with 0, because the script ends by itself."""
        self.is_ending = True
        self.wait("all agents to exit with 0", lambda records: all(pod.is_done for pod in self.pods.values()), seconds)
        for pod in self.pods.values():
            if pod.process is not None:
                pod.process.terminate()
                pod.process.wait(END_SECONDS)
        return self.records

    def left(self) -> list[str]:
        """Returns what an ended group has left after LEFT_SECONDS: processes, listening sockets, shared memory.

        Some processes end only when the kernel signals the death of their parent to them.
        """
        deadline = time.monotonic() + LEFT_SECONDS
        while (found := self._left()) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        return found

    def _left(self) -> list[str]:
        found = [f"process {pid}: {processes.command(pid)[:120]}" for pid in processes.marked(self.mark)]
        found += [f"shared memory {path}" for path in Path(names.SHM_DIR).glob(f"*{self.uid}*")]
        # An agent's address is 127.x.1.y, in hexadecimal digits from the last byte to the first.
        ours = re.compile(rf"^ *\d+: (..01..7F:{self.network.port:04X}) \S+ 0A", re.MULTILINE)
        found += [f"listening socket {address}" for address in ours.findall(Path("/proc/net/tcp").read_text())]
        return found

    def count(self, text: str) -> int:
        """Returns how often the agents and their workers have printed this text."""
        return sum(path.read_text(errors="replace").count(text) for path in self.folder.glob("agent-*.out"))

    def output(self) -> str:
        """Returns the end of what the agents have printed, and the stacks of the workers that run."""
        tails = []
        for path in sorted(self.folder.glob("agent-*.out")):
            tails.append(f"--- {path.name}\n{path.read_text(errors='replace')[-LOG_TAIL:]}")
        return "\n".join([*tails, *self._stacks()])

    def _stacks(self) -> list[str]:
        running, files = set(self.workers().values()), []
        for path in sorted(self.folder.glob(f"state-*/{names.STACK_FOLDER}/*")):
            pid = path.read_text(errors="replace").partition("\n")[0].removeprefix("pid ")
            if pid.isdigit() and int(pid) in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), stack_dump.SIGNAL)
                    files.append(path)
        time.sleep(0.5 if files else 0.0)  # faulthandler writes at once, and nothing shows that it has
        return [f"--- {path.parent.parent.name}/{path.name}\n{path.read_text(errors='replace')}" for path in files]

    def close(self) -> None:
        """Kills everything, and removes the folder and the shared memory."""
        for pod in self.pods.values():
            if pod.process is not None and pod.process.poll() is None:
                pod.process.kill()
                pod.process.wait()
        try:
            processes.kill_all(self.mark)
        finally:
            self.network.close()
            for path in Path(names.SHM_DIR).glob(f"dtj-{self.uid}-*"):
                shutil.rmtree(path, ignore_errors=True)
            shutil.rmtree(self.folder, ignore_errors=True)
