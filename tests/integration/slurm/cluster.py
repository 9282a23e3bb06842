"""A real Slurm on this machine: munged, slurmctld, and a slurmd for each node in a network namespace of its own.

`make test-slurm` starts it as root, with Debian's packages, in namespaces of its own.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.lib.waiting import wait_until

BRIDGE = "dtj-slurm"
CONTROLLER = "10.77.0.1"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "ip")
# The packages have these in folders that are not on everybody's PATH.
FOLDERS = "/usr/sbin:/sbin"
CONFIG = """
ClusterName=dtj
SlurmctldHost=controller({controller})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MpiDefault=none
ReturnToService=2
SlurmdTimeout=15
KillWait=30
MinJobAge=3600
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
"""


class SlurmCluster:
    """A cluster of nodes node1, node2, …, which share this machine's files. Use as a context manager."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder = folder
        self.nodes = [f"node{number}" for number in range(1, nodes + 1)]
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> SlurmCluster:
        try:
            self._prepare()
            self._start_daemons()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def run(self, *command: str, timeout: float = 60) -> str:
        """Returns the output of one of Slurm's commands."""
        done = subprocess.run(
            command, env=self.environment(), capture_output=True, text=True, timeout=timeout, cwd=self.folder
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def environment(self) -> dict[str, str]:
        path = f"{FOLDERS}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def state(self, job: str) -> str:
        """Returns the state of a job, such as RUNNING."""
        return self.field(job, "JobState")

    def field(self, job: str, name: str) -> str:
        """Returns what `scontrol show job` prints behind `NAME=`."""
        shown = self.run("scontrol", "--oneliner", "show", "job", job)
        return next(part.partition("=")[2] for part in shown.split() if part.startswith(f"{name}="))

    def address(self, node: str) -> str:
        return f"10.77.0.{10 + int(node.removeprefix('node'))}"

    def lose(self, node: str) -> None:
        """Takes a node off the network, and ends all of its processes."""
        self._daemons.pop(node).kill()
        inside = _output("ip", "netns", "pids", node).split()
        for pid in map(int, inside):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def start_node(self, node: str) -> None:
        # `ip netns exec` would mount another /sys, without the cgroups that slurmd looks for.
        command = [
            "nsenter",
            f"--net=/run/netns/{node}",
            "unshare",
            "--uts",
            "sh",
            "-c",
            'hostname "$0"; exec "$@"',
            node,
        ]
        self._daemon(node, [*command, "slurmd", "-D", "-N", node])

    def _prepare(self) -> None:
        missing = [name for name in PROGRAMS if shutil.which(name, path=self.environment()["PATH"]) is None]
        assert not missing, (
            f"{', '.join(missing)} missing: apt-get install slurmctld slurmd slurm-client munge iproute2"
        )
        alone = [name for _, name in socket.if_nameindex()] == ["lo"]
        assert alone, "start these tests by `make test-slurm`, which gives them a network of their own"
        for name in ("state", *(f"spool-{node}" for node in self.nodes)):
            (self.folder / name).mkdir(parents=True)
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        hosts = [f"{CONTROLLER} controller", *(f"{self.address(node)} {node}" for node in self.nodes)]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *hosts]) + "\n")
        options = "CPUs=2 RealMemory=4000 State=UNKNOWN"
        nodes = [f"NodeName={node} NodeAddr={self.address(node)} {options}" for node in self.nodes]
        text = CONFIG.format(controller=CONTROLLER, folder=self.folder, nodes="\n".join(nodes))
        (self.folder / "slurm.conf").write_text(text)
        # slurmd loads the plugin whatever tracks the processes, and does not find its version on every machine.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        _output("mount", "--make-rprivate", "/")
        _output("mount", "--bind", str(self.folder / "hosts"), "/etc/hosts")
        Path("/run/netns").mkdir(exist_ok=True)
        _output("mount", "-t", "tmpfs", "netns", "/run/netns")
        _output("hostname", "controller")
        _output("ip", "link", "set", "lo", "up")
        _output("ip", "link", "add", BRIDGE, "type", "bridge")
        _output("ip", "address", "add", f"{CONTROLLER}/24", "dev", BRIDGE)
        _output("ip", "link", "set", BRIDGE, "up")
        for node in self.nodes:
            self._connect(node)

    def _connect(self, node: str) -> None:
        """Gives a node a network namespace with one interface on the bridge."""
        _output("ip", "netns", "add", node)
        _output("ip", "link", "add", f"v-{node}", "type", "veth", "peer", "name", "eth0", "netns", node)
        _output("ip", "link", "set", f"v-{node}", "master", BRIDGE, "up")
        inside = ("ip", "-n", node)
        _output(*inside, "address", "add", f"{self.address(node)}/24", "dev", "eth0")
        _output(*inside, "link", "set", "eth0", "up")
        _output(*inside, "link", "set", "lo", "up")

    def _start_daemons(self) -> None:
        names = {"socket": "munge.socket", "key-file": "munge.key", "log-file": "munged.log", "pid-file": "munged.pid"}
        flags = [f"--{name}={self.folder / file}" for name, file in names.items()]
        self._daemon("munged", ["munged", "--foreground", "--force", f"--seed-file={self.folder}/seed", *flags])
        wait_until("munged answers", (self.folder / "munge.socket").exists)
        self._daemon("slurmctld", ["slurmctld", "-D", "-c"])
        for node in self.nodes:
            self.start_node(node)
        wait_until("all nodes are idle", self.is_idle, timeout=120, every=0.5, retry=(AssertionError,))

    def is_idle(self) -> bool:
        """Returns whether every node could run a job."""
        shown = self.run("sinfo", "--noheader", "--partition=main", "--format=%T %D")
        return shown.split() == ["idle", str(len(self.nodes))]

    def _daemon(self, name: str, command: Sequence[str]) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                command, env=self.environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def _stop(self) -> None:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(["scancel", "--user=root"], env=self.environment(), capture_output=True, timeout=30)
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
        for daemon in self._daemons.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(20)
            daemon.kill()
        for node in self.nodes:
            for pid in subprocess.run(["ip", "netns", "pids", node], capture_output=True, text=True).stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout
