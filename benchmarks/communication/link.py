"""Runs ranks on two nodes with a core each, joined by the link of `dtj bench`. Needs root, `ip` and `tc`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dtj.bench import link as shaped

PORT = 29571
TIMEOUT = 1800.0


@contextmanager
def link(mbit: int) -> Iterator[None]:
    """Makes two nodes and the link between them, and removes them at the end. Raises RuntimeError without BBR."""
    shaped.require(f"{mbit} Mbit/s")
    with shaped.link(mbit * 1e6) as (node, _):
        if shaped.congestion_control(node) != shaped.BBR:
            raise RuntimeError("this kernel lacks BBR, with which the other figures were measured")
        yield


def run(work: str, *arguments: Any, local: int = 1, nodes: int = 2, interleaved: bool = False) -> Any:
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
                "MASTER_ADDR": shaped.ADDRESSES[0], "MASTER_PORT": PORT, "GLOO_SOCKET_IFNAME": shaped.DEVICE,
                "OMP_NUM_THREADS": 1,
            }  # fmt: skip
            own = [*shaped.within(shaped.nodes()[node]), "taskset", "-c", str(node % (os.cpu_count() or 1))]
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
    return int(Path(f"/sys/class/net/{shaped.DEVICE}/statistics/tx_bytes").read_text())
