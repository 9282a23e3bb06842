"""The launchers that are compared. Each starts its engine's script on four ranks, two nodes of two on this machine."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from benchmarks.recovery import processes
from benchmarks.recovery.arms import LOOPBACK, RANKS, Group, Ours, free_port
from benchmarks.recovery.learning import has_learned
from benchmarks.recovery.trials import NeverStartedError, wait
from dtj_agent import engines

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build"
STEP_SECONDS = 0.05
HEAD_SECONDS = 60.0
RAY = ("-m", "ray.scripts.scripts", "start")
# Those of engine `ray`: the nodes share a machine, so the kernel chooses the ports of Ray's workers.
RAY_FLAGS = (f"--node-ip-address={LOOPBACK}", "--disable-usage-stats", "--min-worker-port=0", "--max-worker-port=0")


def environment(engine: str) -> Path:
    """Returns the virtual environment of an engine, from hack/engines.sh or hack/frameworks.sh."""
    return BUILD / ("frameworks-venv" if engine == "deepspeed" else f"engines-venv/{engine}")


def script(engine: str) -> Path:
    """Returns the training that all arms of an engine run."""
    return HERE / f"scripts/{engine}_script.py"


class Launched(Group):
    """A group in the environment of its engine."""

    ENGINE: ClassVar[str]
    VARIABLES: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        super().__init__(2, STEP_SECONDS)
        self.bin = environment(self.ENGINE) / "bin"
        self.python = str(self.bin / "python")
        self.script = str(script(self.ENGINE))
        self.launchers: list[subprocess.Popen[bytes]] = []
        below = self.environment.get("PYTHONPATH")
        self.environment |= {
            # Ray's workers find the log's module by it.
            "PYTHONPATH": ":".join([str(HERE / "scripts"), *([below] if below else [])]),
            "CUDA_VISIBLE_DEVICES": "-1", "DS_ACCELERATOR": "cpu", "RAY_USAGE_STATS_ENABLED": "0", **self.VARIABLES,
        }  # fmt: skip

    def execute(self, name: str, command: list[str], **environment: str) -> subprocess.Popen[bytes]:
        """Starts a process of the trial, and remembers it as one that must not end."""
        process = super().execute(name, command, **environment)
        self.launchers.append(process)
        return process

    def loop(self, how: Literal["wait", "kill"], count: int, line: str, **environment: str) -> None:
        """Starts the shell loop, which runs `line` for each RANK below `count` and begins again when one fails."""
        self.execute("loop", ["bash", str(HERE / "loop.sh"), how, str(count), line], **environment)

    def is_settled(self) -> bool:
        """Returns whether a restart would find what it finds after an hour of training."""
        return True

    def has_ended(self) -> bool:
        """Returns whether nobody is left who could restart a rank."""
        return all(launcher.poll() is not None for launcher in self.launchers)

    def ray_node(self) -> int:
        """Returns the process id of the raylet in the node without the head; 0 if there is none."""
        for pid in processes.marked(self.mark):
            command = processes.command(pid)
            if "/raylet/raylet " in command and " --head" not in command:
                return pid
        return 0


class OurEngine(Launched, Ours):
    """`dtj run` with a job's `engine`, and defaults beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.SCRIPT = Path(self.script)

    def is_settled(self) -> bool:
        """Returns whether the warm processes have imported what they can of the script's, where the engine has them."""
        return engines.load(self.ENGINE).warm is None or has_learned(self.folder, least=self.pods)


def ours(name: str) -> Callable[[], Launched]:
    """Returns our arm of an engine."""

    class Engine(OurEngine):
        ENGINE = name
        SPEC: ClassVar[dict[str, Any]] = {**Ours.SPEC, "engine": name}

    return Engine


class Horovodrun(Launched):
    """`horovodrun --gloo`, elastic: a discovery script names two hosts of two slots, both of them this machine.

    The host of a failed rank is not used again, so its defaults continue with two ranks.
    """

    ENGINE = "horovod"

    def start(self) -> None:
        """Starts horovodrun, which starts the ranks."""
        hosts = self.folder / "hosts.sh"
        hosts.write_text(f"#!/bin/sh\necho localhost:2\necho {LOOPBACK}:2\n")
        hosts.chmod(0o755)
        flags = ["-np", str(RANKS), "--min-np", "2", "--host-discovery-script", str(hosts), "--network-interface", "lo"]
        self.spawn("horovodrun", [str(self.bin / "horovodrun"), "--gloo", *flags, self.python, self.script])


class TunedHorovodrun(Horovodrun):
    """horovodrun whose ranks wait 5 s for each other, not 30: one that has no connection to the dead rank must."""

    VARIABLES: ClassVar[dict[str, str]] = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "5"}


class RayStart(Launched):
    """`ray start` on two nodes and a driver. A shell loop starts the second node again, as a cluster's pod would."""

    ENGINE = "ray"

    def start(self) -> None:
        """Starts the head, and once it serves the second node and the driver. Raises NeverStartedError."""
        port = str(free_port())
        address = f"{LOOPBACK}:{port}"
        head = [*RAY, "--head", "--block", f"--port={port}", "--include-dashboard=false"]
        self.spawn("head", [*head, *RAY_FLAGS])
        if not wait(lambda: _answers(int(port)), HEAD_SECONDS):
            raise NeverStartedError(f"no head of Ray after {HEAD_SECONDS:g} s\n{self.output()}")
        node = [self.python, *RAY, "--block", f"--address={address}", *RAY_FLAGS]
        self.loop("wait", 1, f"exec {shlex.join(node)}")
        self.driver = self.spawn("driver", [self.script], RAY_ADDRESS=address)

    def has_ended(self) -> bool:
        """Returns whether the driver has ended; Ray's nodes would outlive it."""
        return self.driver.poll() is not None


class TunedRayStart(RayStart):
    """Ray whose trainer looks after its workers each tenth of a second, not every two seconds."""

    VARIABLES: ClassVar[dict[str, str]] = {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1"}


class Deepspeed(Launched):
    """`deepspeed --no_ssh` on two nodes. A launcher ends all ranks of its node when one fails, and restarts none."""

    ENGINE = "deepspeed"

    def line(self) -> str:
        """Returns the shell's line for the launcher of node RANK."""
        hosts = self.folder / "hostfile"
        hosts.write_text(f"localhost slots=2\n{LOOPBACK} slots=2\n")
        flags = ["--no_ssh", "--hostfile", str(hosts), "--master_addr", LOOPBACK, "--master_port", str(free_port())]
        command = [self.python, str(self.bin / "deepspeed"), *flags]
        return f"exec {shlex.join(command)} --node_rank $RANK {shlex.quote(self.script)}"

    def start(self) -> None:
        """Starts the launcher of each node."""
        line = self.line()
        for node in range(self.pods):
            self.execute(f"node-{node}", ["bash", "-c", line], RANK=str(node))


class LoopedDeepspeed(Deepspeed):
    """A shell loop around the two launchers of `deepspeed`."""

    def start(self) -> None:
        """Starts the loop."""
        self.loop("wait", self.pods, self.line())


class Jax(Launched):
    """A shell loop that starts the four ranks, and starts them again when all have ended."""

    ENGINE = "jax"
    HOW: Literal["wait", "kill"] = "wait"

    def start(self) -> None:
        """Starts the loop."""
        line = f"JAX_PROCESS_ID=$RANK exec {shlex.join([self.python, self.script])}"
        address = f"{LOOPBACK}:{free_port()}"
        self.loop(self.HOW, RANKS, line, JAX_COORDINATOR_ADDRESS=address, JAX_NUM_PROCESSES=str(RANKS))


class TunedJax(Jax):
    """The loop, with a tenth of JAX's timeout for heartbeats."""

    VARIABLES: ClassVar[dict[str, str]] = {"RECOVERY_HEARTBEAT": "10"}


class KillingJax(Jax):
    """A shell loop that kills the other ranks when one has failed."""

    HOW: Literal["wait", "kill"] = "kill"


class Tensorflow(Launched):
    """A shell loop that starts the four ranks, and starts them again when all have ended."""

    ENGINE = "tensorflow"
    HOW: Literal["wait", "kill"] = "wait"

    def start(self) -> None:
        """Starts the loop."""
        workers = json.dumps([f"{LOOPBACK}:{free_port()}" for _ in range(RANKS)])
        config = '{"cluster": {"worker": %s}, "task": {"type": "worker", "index": \'$RANK\'}}' % workers  # noqa: UP031
        self.loop(self.HOW, RANKS, f"TF_CONFIG='{config}' exec {shlex.join([self.python, self.script])}")


class KillingTensorflow(Tensorflow):
    """A shell loop that kills the other ranks when one has failed."""

    HOW: Literal["wait", "kill"] = "kill"


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One row of the table."""

    engine: str
    launcher: str
    make: Callable[[], Launched]
    node: bool = False
    """Whether a Ray node is killed instead of a rank."""

    @property
    def killed(self) -> str:
        """The process that is killed."""
        return "a Ray node" if self.node else "rank 3"

    @property
    def name(self) -> str:
        """The arm's name in the results."""
        return f"{self.engine}, {self.killed}: {self.launcher}"


OURS = "dtj run"
LOOP, KILLING_LOOP = "a shell loop", "a shell loop that kills the others"
ENGINES = ("horovod", "ray", "deepspeed", "jax", "tensorflow")
ARMS = (
    Arm(engine="horovod", launcher=OURS, make=ours("horovod")),
    Arm(engine="horovod", launcher="horovodrun", make=Horovodrun),
    Arm(engine="horovod", launcher="horovodrun, tuned", make=TunedHorovodrun),
    Arm(engine="ray", launcher=OURS, make=ours("ray")),
    Arm(engine="ray", launcher="ray start", make=RayStart),
    Arm(engine="ray", launcher="ray start, tuned", make=TunedRayStart),
    Arm(engine="ray", launcher=OURS, make=ours("ray"), node=True),
    Arm(engine="ray", launcher="ray start", make=RayStart, node=True),
    Arm(engine="ray", launcher="ray start, tuned", make=TunedRayStart, node=True),
    Arm(engine="deepspeed", launcher=OURS, make=ours("deepspeed")),
    Arm(engine="deepspeed", launcher="deepspeed", make=Deepspeed),
    Arm(engine="deepspeed", launcher="deepspeed in a shell loop", make=LoopedDeepspeed),
    Arm(engine="jax", launcher=OURS, make=ours("jax")),
    Arm(engine="jax", launcher=LOOP, make=Jax),
    Arm(engine="jax", launcher=f"{LOOP}, tuned", make=TunedJax),
    Arm(engine="jax", launcher=KILLING_LOOP, make=KillingJax),
    Arm(engine="tensorflow", launcher=OURS, make=ours("tensorflow")),
    Arm(engine="tensorflow", launcher=LOOP, make=Tensorflow),
    Arm(engine="tensorflow", launcher=KILLING_LOOP, make=KillingTensorflow),
)


def installed() -> list[str]:
    """Returns the engines whose environments are complete."""
    return [engine for engine in ENGINES if (environment(engine) / ".stamp").exists()]
