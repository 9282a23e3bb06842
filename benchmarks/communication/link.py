"""Two network namespaces that are two nodes, joined by a link of a given rate. Needs root, `ip` and `tc`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NODES = (f"dtj-bench-{os.getpid()}-a", f"dtj-bench-{os.getpid()}-b")
"""Two runs at the same time have nodes of their own."""
ADDRESSES = ("10.231.7.1", "10.231.7.2")
DEVICE = "dtj-veth"
PORT = 29571
TIMEOUT = 1800.0
COMMAND_TIMEOUT = 30.0


@contextmanager
def link(mbit: int) -> Iterator[None]:
    """Makes two nodes and the link between them, and removes them at the end.

    A token bucket gives 0.955 of its rate to payload.
    """
    _remove()
    try:
        for node in NODES:
            _run("ip", "netns", "add", node)
        first, second = ("netns", NODES[0]), ("netns", NODES[1])
        _run("ip", "link", "add", DEVICE, *first, "type", "veth", "peer", "name", DEVICE, *second)
        for node, address in zip(NODES, ADDRESSES, strict=True):
            within = ("ip", "netns", "exec", node)
            _run(*within, "ip", "address", "add", f"{address}/24", "dev", DEVICE)
            _run(*within, "ip", "link", "set", "lo", "up")
            _run(*within, "ip", "link", "set", DEVICE, "up")
            _run(*within, "sysctl", "-q", "-w", "net.ipv4.tcp_congestion_control=bbr")
            shape = ("tbf", "rate", f"{mbit}mbit", "burst", "256kb", "latency", "50ms")
            _run(*within, "tc", "qdisc", "add", "dev", DEVICE, "root", *shape)
        yield
    finally:
        _remove()


def run(work: str, *arguments: Any, local: int = 1, nodes: int = len(NODES), interleaved: bool = False) -> Any:
    """Runs the function `MODULE:NAME` on `local` ranks in each of `nodes`, a core for each. Returns rank 0's result.

    Call it within `link`. `interleaved`: consecutive ranks are on different nodes. Raises RuntimeError with the
    output of a rank that fails.
    """
    with tempfile.TemporaryDirectory(prefix="dtj-bench-") as folder:
        world = local * nodes
        outputs, processes = [Path(folder) / f"rank-{rank}.txt" for rank in range(world)], []
        for rank in range(world):
            node, within = (rank % nodes, rank // nodes) if interleaved else divmod(rank, local)
            place = {
                "RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": within, "LOCAL_WORLD_SIZE": local, "GROUP_RANK": node,
                "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": PORT, "GLOO_SOCKET_IFNAME": DEVICE, "OMP_NUM_THREADS": 1,
            }  # fmt: skip
            own = ["ip", "netns", "exec", NODES[node], "taskset", "-c", str(node % (os.cpu_count() or 1))]
            module = [sys.executable, "-m", "benchmarks.communication.rank", work, json.dumps(arguments), folder]
            environment = os.environ | {name: str(value) for name, value in place.items()}
            with outputs[rank].open("w") as out:
                processes.append(subprocess.Popen([*own, *module], env=environment, stdout=out, stderr=out))
        deadline = time.monotonic() + TIMEOUT
        try:
            while any(p.poll() is None for p in processes):
                if time.monotonic() > deadline or any(p.poll() for p in processes):
                    break
                time.sleep(0.1)
            if any(p.poll() != 0 for p in processes):
                raise RuntimeError("\n".join(path.read_text()[-3000:] for path in outputs))
        finally:
            for p in processes:
                p.kill()
                p.wait()
        return json.loads((Path(folder) / "result.json").read_text())


def sent_bytes() -> int:
    """Returns the bytes that this node has sent over the link, headers included."""
    return int(Path(f"/sys/class/net/{DEVICE}/statistics/tx_bytes").read_text())


def _remove() -> None:
    """Removes our nodes, and those that a killed run has left."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    named = re.findall(r"^(dtj-bench-(\d+)-[ab])\b", listed, re.MULTILINE)
    left = [node for node, process in named if not Path(f"/proc/{process}").exists()]
    for node in [*NODES, *left]:
        command = ["ip", "netns", "delete", node]
        subprocess.run(command, stderr=subprocess.DEVNULL, check=False, timeout=COMMAND_TIMEOUT)


def _run(*command: str) -> None:
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT)
    if found.returncode:
        raise RuntimeError(f"{' '.join(command)}: {found.stderr.strip()} (this benchmark needs root, ip and tc)")
