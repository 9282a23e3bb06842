"""Two network namespaces that are two nodes, joined by a link of a given rate. Needs root, `ip` and `tc`.

Each namespace is named after the process that has made it. The next process that makes a link removes the namespaces
of processes that were killed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dtj.errors import InputError, LocalRunError

ADDRESSES = ("10.231.7.1", "10.231.7.2")
DEVICE = "dtj-veth"
"""The interface of each node."""
TOOLS = ("ip", "tc")
REMEDY = "write --link none to measure without a shaped link"
_SUFFIXES = ("a", "b")
_NAME = re.compile(r"^(dtj-bench-(\d+)-(\d+))-[ab]\b", re.MULTILINE)
BBR = "bbr"
_CONGESTION_CONTROL = "net.ipv4.tcp_congestion_control"
_SECONDS = 30.0


def owner(pid: int | None = None) -> str:
    """Returns the begin of the names of a process's namespaces: its id and when it began, which no later one has."""
    pid = os.getpid() if pid is None else pid
    return f"dtj-bench-{pid}-{_began(pid)}"


def nodes() -> tuple[str, str]:
    """Returns the names of this process's two namespaces."""
    first, second = (f"{owner()}-{suffix}" for suffix in _SUFFIXES)
    return first, second


def require(flag: str) -> None:
    """Raises InputError that names the flag, if this process can't make namespaces."""
    if os.geteuid() != 0:
        raise InputError(f"{flag}: a shaped link needs root; start dtj with sudo, or {REMEDY}")
    for tool in TOOLS:
        if shutil.which(tool) is None:
            raise InputError(f"{flag}: a shaped link needs `{tool}`; install iproute2, or {REMEDY}")


@contextmanager
def link(bits_per_second: float) -> Iterator[tuple[str, str]]:
    """Makes two nodes and the link between them, and removes them at the end. Yields their names.

    A token bucket gives 0.955 of its rate to payload. Raises LocalRunError if the kernel refuses.
    """
    sweep()
    remove(owner())
    first, second = nodes()
    try:
        for node in (first, second):
            _run("ip", "netns", "add", node)
        _run("ip", "link", "add", DEVICE, "netns", first, "type", "veth", "peer", "name", DEVICE, "netns", second)
        for node, address in zip((first, second), ADDRESSES, strict=True):
            _run(*within(node), "ip", "address", "add", f"{address}/24", "dev", DEVICE)
            _run(*within(node), "ip", "link", "set", "lo", "up")
            _run(*within(node), "ip", "link", "set", DEVICE, "up")
            # Other ways take the full bucket of the shaper for congestion. A kernel may lack this one.
            _try(*within(node), "sysctl", "-q", "-w", f"{_CONGESTION_CONTROL}={BBR}")
            shape = ("tbf", "rate", f"{bits_per_second:.0f}bit", "burst", "256kb", "latency", "50ms")
            _run(*within(node), "tc", "qdisc", "add", "dev", DEVICE, "root", *shape)
        yield first, second
    finally:
        remove(owner())


def within(node: str) -> list[str]:
    """Returns what stands before a command that runs in a node."""
    return ["ip", "netns", "exec", node]


def congestion_control(node: str) -> str:
    """Returns how TCP finds its rate in a node: BBR, or the kernel's own way where it lacks that."""
    return _run(*within(node), "sysctl", "-n", _CONGESTION_CONTROL).strip()


def existing() -> list[str]:
    """Returns the owners of all namespaces of ours on this machine."""
    if shutil.which("ip") is None:
        return []
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False, timeout=_SECONDS)
    return list(dict.fromkeys(found[0] for found in _NAME.findall(listed.stdout)))


def sweep() -> None:
    """Removes the namespaces of processes that no longer live."""
    for name in existing():
        pid = int(name.split("-")[2])
        if owner(pid) != name:
            remove(name)


def remove(name: str) -> None:
    """Removes the namespaces of one owner, where there are any; their link goes with them."""
    for suffix in _SUFFIXES:
        if Path("/run/netns", f"{name}-{suffix}").exists() or Path("/var/run/netns", f"{name}-{suffix}").exists():
            _try("ip", "netns", "delete", f"{name}-{suffix}")


def _began(pid: int) -> str:
    """Returns when a process began, in ticks since the boot; "gone" if it does not live."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "gone"
    return "gone" if fields[0] in "ZX" else fields[19]  # 3: state, 22: starttime of proc(5)


def _run(*command: str) -> str:
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    if found.returncode:
        raise LocalRunError(f"`{' '.join(command)}` failed: {found.stderr.strip()}; {REMEDY}")
    return found.stdout


def _try(*command: str) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, timeout=_SECONDS)
