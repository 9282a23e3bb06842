"""Starts real ranks: processes with torchrun's environment, gloo on loopback, the agent's socket
where a test wants one.

The ranks are forked from one server process that has imported torch, so that a group is up in a
tenth of a second and not in the seconds that importing torch takes on a busy machine.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from dtj_trainer.telemetry.record import Record
from tests.lib.ports import free_port
from tests.lib.waiting import wait_until

DEADLINE = 300.0  # seconds for a whole group: generous, because the machine may be busy
PRELOAD = ["torch._dynamo", "torch.distributed.tensor.parallel", "dtj_trainer.examples.gpt"]
_context = multiprocessing.get_context("forkserver")


def _child(
    target: Sequence[str] | Callable[..., None], arguments: tuple[Any, ...], env: dict[str, str], log: str
) -> None:
    """Runs in the forked process: sets environment and output, then calls the module or function."""
    # A server's child would start its own children by a server too, and each loader's worker would
    # import torch again, for a minute on a busy machine. A rank that torchrun starts has the
    # platform's default.
    multiprocessing.set_start_method(None, force=True)
    for name in [n for n in os.environ if n.startswith("DTJ_")]:
        del os.environ[name]
    os.environ.update(env)
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - lives as long as the process
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    faulthandler.register(signal.SIGUSR1)  # also in the loader's workers, which are forked
    if callable(target):
        target(*arguments)
    else:
        sys.argv = [target[0], *target[1:]]
        runpy.run_module(target[0], run_name="__main__", alter_sys=True)


@dataclass
class Ranks:
    """A running group of ranks."""

    processes: list[ForkServerProcess]
    logs: list[Path]

    def output(self, rank: int = 0) -> str:
        return self.logs[rank].read_text()

    def everything(self) -> str:
        return "\n".join(f"--- rank {r}\n{self.output(r)[-6000:]}" for r in range(len(self.logs)))

    def wait(self, seconds: float = DEADLINE) -> list[int | None]:
        """Returns the exit codes by rank; None for a rank that still runs at the deadline.

        Makes such a rank and its children write their stacks to its log.
        """
        deadline = time.monotonic() + seconds
        for p in self.processes:
            p.join(max(0.0, deadline - time.monotonic()))
        codes = [p.exitcode for p in self.processes]
        for p in self.processes:
            if p.is_alive():
                self._write_stacks(p)
        return codes

    def _write_stacks(self, process: ForkServerProcess) -> None:
        log = self.logs[self.processes.index(process)]
        assert process.pid is not None, "it was started"
        for pid in [process.pid, *_children(process.pid)]:
            with log.open("a") as file:
                print(f"Stacks of process {pid}:", file=file)
            size = log.stat().st_size
            with contextlib.suppress(OSError, AssertionError):  # it ends just now
                os.kill(pid, signal.SIGUSR1)
                wait_until("its stacks", lambda size=size: log.stat().st_size > size, timeout=5.0)  # type: ignore[misc]

    def wait_until(self, condition: Callable[[], bool], timeout: float = DEADLINE) -> None:
        """Waits for `condition`. Raises AssertionError if all ranks end before it is met."""

        def met() -> bool:
            if condition():
                return True
            alive = any(p.is_alive() for p in self.processes)
            assert alive or condition(), f"all ranks have ended\n{self.everything()}"
            return False

        wait_until("a condition on the ranks", met, timeout=timeout, every=0.002, detail=self.everything)

    def signal(self, number: signal.Signals) -> None:
        for p in self.processes:
            if p.pid is not None and p.is_alive():
                os.kill(p.pid, number)


def _children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


@contextlib.contextmanager
def ranks(
    world: int, target: Sequence[str] | Callable[..., None], folder: Path, *arguments: Any, **env: str
) -> Iterator[Ranks]:
    """Starts `world` processes of `[module, argument...]` or of a function; kills the rest at the
    end.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # read when the server imports torch
    _context.set_forkserver_preload(PRELOAD)
    port, run = free_port(), len(list(folder.glob("log-*-0.txt")))
    processes, logs = [], []
    for rank in range(world):
        own = {
            "RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world, "GROUP_RANK": 0,
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
        }  # fmt: skip
        logs.append(folder / f"log-{run}-{rank}.txt")
        logs[-1].touch()
        environment = {k: str(v) for k, v in own.items()} | env
        processes.append(_context.Process(target=_child, args=(target, arguments, environment, str(logs[-1]))))
        processes[-1].start()
    try:
        yield Ranks(processes, logs)
    finally:
        for p in processes:
            if p.is_alive():
                p.kill()
            p.join(DEADLINE)


def finished(world: int, target: Sequence[str] | Callable[..., None], folder: Path, *arguments: Any, **env: str) -> str:
    """Runs a group to its end, where all ranks exit with 0. Returns rank 0's output."""
    with ranks(world, target, folder, *arguments, **env) as group:
        codes = group.wait()
        assert codes == [0] * world, f"exit codes {codes}\n{group.everything()}"
        return group.output()


def history(directory: Path) -> list[dict[str, Any]]:
    """Reads metrics.jsonl, which covers all attempts."""
    try:
        lines = (directory / "metrics.jsonl").read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("\n")]


class Records:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.records: list[Mapping[str, Any]] = []

    def write(self, record: Record) -> None:
        self.records.append(record.flat())

    def close(self) -> None:
        pass


@dataclass
class AgentSocket:
    """Stands in for an agent: receives every datagram of every rank."""

    path: Path
    heard: list[dict[str, Any]] = field(default_factory=list)
    _socket: socket.socket = field(default_factory=lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))

    def __enter__(self) -> AgentSocket:
        self._socket.bind(str(self.path))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RD)
        self._thread.join(DEADLINE)
        self._socket.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):  # the socket is shut down
            while body := self._socket.recv(65536):
                self.heard.append(json.loads(body))
