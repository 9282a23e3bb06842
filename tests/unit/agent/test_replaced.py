"""Pod 0 is replaced but stays alive: the control plane has lost its node, while its kubelet and the pod network work.

Real agents resolve names in a file, which stands for the cluster's DNS: pod 0's name resolves to
the pod that the API server knows. Each pod has a loopback address of its own.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dtj_contract import names
from tests.lib.ports import free_port
from tests.lib.waiting import wait_until
from tests.unit.agent.harness import Group, is_alive, kill, token

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8 on loopback")

# An agent that resolves names from the file $HOSTS.
PROGRAM = """
import os, socket
real = socket.getaddrinfo
def lookup(host, port, *args, **kwargs):
    with open(os.environ["HOSTS"]) as file:
        hosts = dict(line.split() for line in file)
    return real(hosts.get(host, host), port, *args, **kwargs)
socket.getaddrinfo = lookup
from dtj_agent.main import main
main()
"""


class Named(Group):
    """A group whose pods have names and addresses; `replace_pod_0` leaves the old one alive."""

    def __init__(self, folder: Path, replicas: int, **environ: str) -> None:
        super().__init__(folder, replicas, program=[sys.executable, "-c", PROGRAM], **environ)
        self.addresses = [f"127.0.7.{10 + ordinal}" for ordinal in range(replicas)]
        self.port = common_port([*self.addresses, "127.0.7.99"])
        self.peers = f"j-{{}}.test:{self.port}"
        self.hosts = folder / "hosts"
        self.point()

    def point(self) -> None:
        """Points DNS at the present addresses of the pods."""
        (self.folder / "hosts.new").write_text("".join(f"j-{o}.test {a}\n" for o, a in enumerate(self.addresses)))
        (self.folder / "hosts.new").rename(self.hosts)

    def start(self, *ordinals: int, **environ: str) -> None:
        for ordinal in ordinals or range(self.replicas):
            hosts = {"HOSTS": str(self.hosts)}
            listen = {names.ENV_LISTEN: f"{self.addresses[ordinal]}:{self.port}"}
            super().start(ordinal, **{**listen, **hosts, **environ})

    def replace_pod_0(self) -> None:
        """Starts a new pod 0 at another address, without state, and points DNS at it."""
        self.addresses[0] = "127.0.7.99"
        self.start(0, **{names.ENV_STATE_DIR: str(self.folder / "new-disk")})
        self.point()

    def start_old_pod_0(self) -> None:
        """Restarts the container of the replaced pod 0, as its kubelet would."""
        new = self.agents[0]
        self.start(
            0, **{names.ENV_LISTEN: f"127.0.7.10:{self.port}", names.ENV_TERMINATION_LOG: str(self.folder / "old-end")}
        )
        self.agents[0] = new

    def get(self, ordinal: int, path: str, authorization: str = "", patience: float = 20.0) -> bytes:
        return self.get_at(self.addresses[ordinal], path, authorization, patience)

    def get_at(self, address: str, path: str, authorization: str = "", patience: float = 20.0) -> bytes:
        request = f"GET {path} HTTP/1.1\r\nAuthorization: {authorization}\r\n\r\n".encode()
        with socket.create_connection((address, self.port), patience) as sock:
            sock.sendall(request)
            answer = b"".join(iter(lambda: sock.recv(65536), b""))
        if not answer:
            raise ConnectionResetError("no answer")
        return answer.partition(b"\r\n\r\n")[2]

    def old_status(self) -> dict[str, Any]:
        try:
            status: dict[str, Any] = json.loads(self.get_at("127.0.7.10", "/status", token()))
        except (OSError, ValueError):
            return {}
        return status


def common_port(addresses: list[str]) -> int:
    """Returns a port that is free on all addresses, below the ephemeral ports, so that nothing takes it meanwhile."""
    for _ in range(500):
        port = free_port()
        sockets = [socket.socket() for _ in addresses]
        try:
            for sock, address in zip(sockets, addresses, strict=True):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((address, port))
            return port
        except OSError:
            continue
        finally:
            for sock in sockets:
                sock.close()
    raise AssertionError("no port is free")


@contextmanager
def running(folder: Path, replicas: int, **environ: str) -> Iterator[Named]:
    group = Named(folder, replicas, **environ)
    try:
        group.start(0)
        wait_until("pod 0 to lead", lambda: "coordinates the group" in group.log(0), timeout=90.0, detail=group.logs)
        group.start(*range(1, replicas))
        yield group
    finally:
        group.close()
        pids = [int(path.read_text() or 0) for path in group.plan.glob("pid-*")]
        wait_until("the workers to end with their agents", lambda: not any(is_alive(pid) for pid in pids if pid))


def ends_well(group: Named) -> None:
    group.tell("finish")
    assert [group.wait_exit(ordinal) for ordinal in range(group.replicas)] == [0] * group.replicas
    ends = [(group.outcome(o)["result"], group.outcome(o)["attempt"]) for o in range(group.replicas)]
    assert (ends[0][0], len(set(ends))) == ("Succeeded", 1)


def test_replaced_leader_that_its_members_reach_keeps_them(tmp_path: Path) -> None:
    """The new pod 0 waits, although pod 0's name leads to it, and takes the old one's place when that ends."""
    with running(tmp_path, 3) as group:
        group.wait_attempt(1)
        old = group.agents[0]
        group.replace_pod_0()
        rejection = "a second agent of ordinal 0 while the first is alive"
        wait_until("a rejection of the new pod 0", lambda: rejection in group.log(0), timeout=90.0, detail=group.logs)
        assert group.old_status()["attempt"] == 1
        assert group.old_status()["phase"] == "Running"
        kill(old.pid)
        old.wait()
        group.wait_attempt(2)
        ends_well(group)


def test_restarted_agent_of_a_replaced_pod_gets_no_member(tmp_path: Path) -> None:
    """Its process is new and remembers attempt 1; the group has gone on with the new pod."""
    with running(tmp_path, 3) as group:
        group.wait_attempt(1)
        old = group.agents[0]
        kill(old.pid)
        old.wait()
        group.replace_pod_0()
        group.wait_attempt(2)
        group.start_old_pod_0()
        rejection = "a second agent of ordinal 0 while the first is alive"
        wait_until("a rejection of the old pod 0", lambda: rejection in group.logs(), detail=group.logs)
        assert group.status()["attempt"] == 2
        assert (group.old_status()["attempt"], group.old_status()["outcome"]) == (1, None)
        ends_well(group)


def test_outcome_of_an_earlier_attempt_does_not_end_the_job(tmp_path: Path) -> None:
    """A pod may have the outcome from a coordinator that had been replaced."""
    with running(tmp_path, 2) as group:
        group.wait_attempt(1)
        kill(group.worker(1))
        group.wait_attempt(2)
        group.agents[1].kill()
        group.wait_exit(1)
        final = {
            "version": 1, "uid": "uid-1", "result": "Failed", "reason": "RendezvousTimeout", "message": "m",
            "attempt": 1,
            "restarts": {"inPlace": 0, "pod": 0, "counted": 0}, "failure": None, "progress": None, "checkpoint": None,
            "recoveries": [], "productiveSeconds": 0.0, "time": 0.0,
        }  # fmt: skip
        disk = tmp_path / "old-outcome"
        disk.mkdir()
        (disk / names.OUTCOME_FILE).write_text(json.dumps(final))
        group.start(1, **{names.ENV_STATE_DIR: str(disk)})
        group.wait_attempt(3)
        assert not (disk / names.OUTCOME_FILE).exists()
        ends_well(group)
