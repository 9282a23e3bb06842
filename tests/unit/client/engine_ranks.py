"""Ranks of an engine without its package: they find each other by the variables that the package reads.

engine_ranks.py ENGINE FOLDER: the servers of the attempt listen, every rank calls all of them, and writes
its environment to FOLDER/ATTEMPT-RANK.json. In the first attempt, rank 0 then kills itself.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

DEADLINE = time.monotonic() + 60


def call(address: str) -> None:
    """Calls a server that may not listen yet."""
    host, _, port = address.rpartition(":")
    while True:
        try:
            socket.create_connection((host, int(port)), 5).close()
            return
        except OSError:
            if time.monotonic() > DEADLINE:
                raise
            time.sleep(0.05)


def servers(engine: str) -> tuple[list[str], str | None]:
    """Returns the addresses of all servers, and the one that this rank serves."""
    if engine == "tensorflow":
        config = json.loads(os.environ["TF_CONFIG"])
        assert config["task"]["type"] == "worker"
        workers: list[str] = config["cluster"]["worker"]
        return workers, workers[config["task"]["index"]]
    coordinator = os.environ["JAX_COORDINATOR_ADDRESS"]
    return [coordinator], coordinator if os.environ["OMPI_COMM_WORLD_RANK"] == "0" else None


def main(engine: str, folder: Path) -> None:
    attempt, rank = os.environ["DTJ_ATTEMPT"], int(os.environ["RANK"])
    assert "torch" not in sys.modules
    every, own = servers(engine)
    listener = None
    if own is not None:
        host, _, port = own.rpartition(":")
        listener = socket.create_server((host, int(port)), backlog=64)
    for address in every:
        call(address)
    done = folder / f"{attempt}-{rank}.json"
    done.with_suffix(".part").write_text(json.dumps(dict(os.environ)))
    done.with_suffix(".part").replace(done)
    # A server that ends early would refuse the calls of the others.
    while len(list(folder.glob(f"{attempt}-*.json"))) < int(os.environ["WORLD_SIZE"]):
        assert time.monotonic() < DEADLINE
        time.sleep(0.02)
    if attempt == "1" and rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if attempt == "1":
        time.sleep(60)  # until the agents end it
    if listener is not None:
        listener.close()


main(sys.argv[1], Path(sys.argv[2]))
