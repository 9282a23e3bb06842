"""The systems that are compared. Each starts the same script on four ranks of this machine."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.recovery import processes
from benchmarks.recovery.logbook import Entry, read

HERE = Path(__file__).parent
RANKS = 4
LOOPBACK = "127.0.0.1"
COMMON = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
FIRST_PORT, LAST_PORT = 10000, 15000


def free_port() -> int:
    """Returns a port that nobody listens on, below the range that the kernel gives to connections."""
    while True:
        port = random.SystemRandom().randrange(FIRST_PORT, LAST_PORT)
        with socket.socket() as probe:
            if probe.connect_ex((LOOPBACK, port)):
                return port


class Group:
    """One trial's processes: a folder, a log, ports of its own; nothing is left after `close`."""

    LEAST_WORLD = 1
    """A group of fewer ranks has not recovered. torchft continues without a lost rank, and starts it again."""

    def __init__(self, pods: int, step_seconds: float) -> None:
        self.pods = pods
        self.python = sys.executable
        self.folder = Path(tempfile.mkdtemp(prefix="rb-"))
        (self.folder / "log").mkdir()
        self.mark = uuid.uuid4().hex
        self.environment = os.environ | COMMON | {
            processes.MARK: self.mark,
            "RECOVERY_FOLDER": str(self.folder),
            "RECOVERY_STEP_SECONDS": str(step_seconds),
            "TMPDIR": str(self.folder),
        }  # fmt: skip

    def start(self) -> object:
        """Starts all agents."""
        raise NotImplementedError

    def agent(self, ordinal: int) -> int:
        """Returns the process id of a pod's agent; 0 while it has none."""
        raise NotImplementedError

    def replace(self, ordinal: int) -> None:
        """Starts a killed agent again, unless the system does so itself."""

    def named(self, rank: int) -> bool:
        """Returns whether the system reports this rank as hung."""
        return False

    def entries(self) -> list[Entry]:
        """Returns what the scripts have logged so far."""
        return read(self.folder / "log")

    def output(self) -> str:
        """Returns the end of what the processes have printed."""
        return "".join(path.read_text(errors="replace")[-3000:] for path in sorted(self.folder.glob("*.out")))

    def close(self) -> None:
        """Kills every process of the trial and removes its folder."""
        processes.kill_all(self.mark)
        shutil.rmtree(self.folder, ignore_errors=True)

    def spawn(self, name: str, arguments: list[str], **environment: str) -> subprocess.Popen[bytes]:
        """Starts Python as a process of the trial in a session of its own."""
        return self.execute(name, [self.python, *arguments], **environment)

    def execute(self, name: str, command: list[str], **environment: str) -> subprocess.Popen[bytes]:
        """Starts a process of the trial in a session of its own."""
        with (self.folder / f"{name}.out").open("ab") as out:
            process = subprocess.Popen(
                command, env=self.environment | environment, cwd=self.folder,
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        # NVRx waits until a killed rank is no zombie any more.
        threading.Thread(target=process.wait, daemon=True).start()
        return process


class Ours(Group):
    """`dtj run`: each pod is an agent with its workers."""

    SCRIPT = HERE / "script.py"
    SPEC: ClassVar[dict[str, Any]] = {"restart": {"maxRestarts": 1000}}
    """The fields of the spec beside those that every job needs."""

    def arguments(self) -> list[str]:
        """Returns the arguments of the script."""
        return []

    def start(self) -> subprocess.Popen[bytes]:
        """Starts `dtj run`, and returns its process."""
        spec = {
            "replicas": self.pods, "processesPerPod": RANKS // self.pods, "image": "here", "backend": "gloo",
            "entrypoint": {"script": str(self.SCRIPT), "args": self.arguments()}, **self.SPEC,
        }  # fmt: skip
        job = {
            "apiVersion": "training.dtj.dev/v1alpha1", "kind": "DistributedTrainingJob",
            "metadata": {"name": "recovery"}, "spec": spec,
        }  # fmt: skip
        (self.folder / "job.yaml").write_text(json.dumps(job))
        folders = ["--volumes-dir", str(self.folder / "volumes"), "--run-dir", str(self.folder / "run")]
        return self.spawn(
            "dtj", ["-m", "dtj.main", "run", str(self.folder / "job.yaml"), "--plain", "--no-logs", *folders]
        )

    def agent(self, ordinal: int) -> int:
        """Returns the newest agent of the pod: not one of the processes that it has started."""
        for pid, environ in sorted(processes.marked(self.mark).items(), reverse=True):
            its_parent = processes.environment(processes.parent(pid))
            if environ.get("DTJ_ORDINAL") == str(ordinal) and "DTJ_ORDINAL" not in its_parent:
                return pid
        return 0

    def named(self, rank: int) -> bool:
        """Returns whether the newest failures name this rank as hung."""
        job = json.loads((self.folder / "run/status.json").read_text())
        found = job.get("status", {}).get("failures") or []
        return any(one.get("reason") == "WorkerHung" and one.get("rank") == rank for one in found)


class Spared(Ours):
    """`dtj run` with a warm and idle pod more, which takes the ranks of a lost one."""

    SPEC: ClassVar[dict[str, Any]] = {**Ours.SPEC, "spares": 1}

    def is_warm(self) -> bool:
        """Returns whether the pod without ranks can fork workers."""
        log = self.folder / f"run/recovery-{self.pods}.log"
        return log.exists() and "is ready: " in log.read_text(errors="replace")


class Torchrun(Group):
    """torchrun as its documentation starts it: c10d rendezvous, one agent per pod."""

    FLAGS: tuple[str, ...] = ()
    VARIABLES: ClassVar[dict[str, str]] = {}

    def start(self) -> None:
        """Starts one agent per pod."""
        self.port, self.is_kept = free_port(), False
        self.agents = [self._agent(ordinal) for ordinal in range(self.pods)]

    def _agent(self, ordinal: int) -> subprocess.Popen[bytes]:
        flags = ["--nnodes", str(self.pods), "--nproc-per-node", str(RANKS // self.pods), "--max-restarts", "1000"]
        meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{LOOPBACK}:{self.port}", "--rdzv-id", self.mark]
        host = "is_host=" + ("true" if ordinal == 0 else "false")
        own = [flag.replace("is_host=?", host) for flag in self.FLAGS]
        command = ["-m", "torch.distributed.run", *flags, *meeting, "--local-addr", LOOPBACK, *own]
        return self.spawn(f"torchrun-{ordinal}", [*command, str(HERE / "script.py")], **self.VARIABLES)

    def agent(self, ordinal: int) -> int:
        """Returns the process id of the last agent that was started."""
        return self.agents[ordinal].pid

    def replace(self, ordinal: int) -> None:
        """Starts the agent at once, faster than any cluster would, and from now on each agent that ends."""
        self.agents[ordinal] = self._agent(ordinal)
        self.is_kept = True

    def entries(self) -> list[Entry]:
        """Returns what the scripts have logged so far. The loss of the store's host ends the other agent too."""
        for ordinal, agent in enumerate(self.agents):
            if self.is_kept and agent.poll() is not None:
                self.replace(ordinal)
        return super().entries()


class TunedTorchrun(Torchrun):
    """torchrun without the shared store that hangs restarts, and with the shortest intervals."""

    FLAGS = ("--monitor-interval", "0.1", "--rdzv-conf", "is_host=?,keep_alive_interval=1,last_call_timeout=1")
    VARIABLES: ClassVar[dict[str, str]] = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


class Nvrx(Group):
    """NVRx's in-process restart: processes without an agent, as a Slurm step starts them."""

    VARIABLES: ClassVar[dict[str, str]] = {}

    def start(self) -> None:
        """Starts one process per rank."""
        port, store = str(free_port()), str(free_port())
        for rank in range(RANKS):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
            meeting = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": port, "RECOVERY_STORE_PORT": store}
            self.spawn(f"rank-{rank}", [str(HERE / "nvrx_script.py")], **place, **meeting, **self.VARIABLES)


class TunedNvrx(Nvrx):
    """NVRx with its intervals at a twentieth of a second."""

    VARIABLES: ClassVar[dict[str, str]] = {"RECOVERY_TUNED": "1"}


class Torchft(Group):
    """torchft: a lighthouse, and a replica group per rank. A supervisor starts a replica again at once."""

    LEAST_WORLD = RANKS
    LIGHTHOUSE: tuple[str, ...] = ("--join_timeout_ms", "10000", "--quorum_tick_ms", "100")
    """The flags of torchft's README."""

    def start(self) -> None:
        """Starts the lighthouse and the replicas, each with a thread that supervises it."""
        self.starting, self.is_closing = threading.Lock(), False
        address = f"{LOOPBACK}:{free_port()}"
        # The command reads the arguments of the process, so it can't be a module.
        command = str(Path(sys.executable).parent / "torchft_lighthouse")
        self.spawn(
            "lighthouse", [command, "--min_replicas", "1", "--bind", address, *self.LIGHTHOUSE], RUST_LOG="error"
        )
        for replica in range(RANKS):
            threading.Thread(target=self._supervise, args=(replica, f"http://{address}"), daemon=True).start()

    def _supervise(self, replica: int, lighthouse: str) -> None:
        place = {"RECOVERY_REPLICA": str(replica), "RECOVERY_REPLICAS": str(RANKS), "TORCHFT_LIGHTHOUSE": lighthouse}
        # Its log of ten lines a step would be part of each step.
        quiet = {"RUST_LOG": "error"}
        while True:
            with self.starting:
                if self.is_closing:
                    return
                began = time.monotonic()
                process = self.spawn(f"replica-{replica}", [str(HERE / "torchft_script.py")], **place, **quiet)
            process.wait()
            # A script that fails at once is not started in a busy loop; a kill meets older processes.
            time.sleep(max(0.0, 1.0 - (time.monotonic() - began)))

    def close(self) -> None:
        """Ends the supervision, then every process."""
        with self.starting:
            self.is_closing = True
        super().close()


OURS, SPARED = "dtj", "dtj, one spare"
DEFAULT, TUNED = "torchrun", "torchrun, tuned"
NVRX, NVRX_TUNED, TORCHFT = "NVRx in-process", "NVRx in-process, tuned", "torchft"
ARMS: dict[str, type[Group]] = {
    OURS: Ours, SPARED: Spared, DEFAULT: Torchrun, TUNED: TunedTorchrun, NVRX: Nvrx, NVRX_TUNED: TunedNvrx,
    TORCHFT: Torchft,
}  # fmt: skip
LIBRARIES: dict[type[Group], str] = {Nvrx: "nvidia_resiliency_ext", Torchft: "torchft"}


def installed() -> list[str]:
    """Returns the arms that can run here."""
    needed = {name: module for name, arm in ARMS.items() for base, module in LIBRARIES.items() if issubclass(arm, base)}
    return [name for name in ARMS if name not in needed or importlib.util.find_spec(needed[name]) is not None]
