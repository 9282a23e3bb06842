"""One pod without an agent, for warm_driver: the agent's own supervisor and warm process."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from dtj_agent import engines
from dtj_agent.net.loop import Loop
from dtj_agent.workers.python_command import PythonCommand
from dtj_agent.workers.supervisor import Supervisor
from dtj_agent.workers.warm_process import WarmProcess
from dtj_agent.workers.worker_start import WorkerStart

PATIENCE = 90.0


class Driver:
    """One pod without an agent. `results` has exit code and output of each rank of the last attempt."""

    def __init__(
        self, modules: list[str], options: tuple[str, ...] = ("-u",), folder: str = "", engine: str = "torch"
    ) -> None:
        self.loop = Loop()
        self.supervisor = Supervisor(self.loop, is_init=False)
        self.logs: list[str] = []
        command = PythonCommand(sys.executable, list(options), "", False)
        spared = self.supervisor.spared
        environ, needs = dict(os.environ), engines.load(engine).warm
        assert needs is not None
        self.warm = WarmProcess(self.loop, command, environ, needs, modules, spared, guarded=True, folder=folder)
        self.warm.log = self.logs.append
        self.warm.on_output = lambda data: self.logs.append(data.decode())
        self.starter = WorkerStart(self.loop, self.supervisor, self.warm, self.logs.append)
        self.starter_callback = self.supervisor.before_strangers
        self.plain = WorkerStart(self.loop, self.supervisor, None, self.logs.append)
        self.results: dict[int, list[Any]] = {}
        self.output = b""
        self.gone = False
        self.ranks = 0
        self.supervisor.on_output = self._write
        self.supervisor.on_exit = self._ended
        self.supervisor.on_gone = self._gone

    def _write(self, data: bytes) -> None:
        self.output += data

    def _ended(self, exits: list[Any]) -> None:
        for worker in exits:
            self.results[worker.rank] = [worker.exit_code, ""]

    def _gone(self) -> None:
        self.gone = True

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        self.loop.later(0.005, lambda: None)
        while not condition():
            self.loop.later(0.005, lambda: None)
            self.loop.run_once()
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {PATIENCE:g} s: {what}; {self.logs} {self.results} {self.output!r}")

    def ready(self) -> None:
        self.warm.start()
        self.until(lambda: self.warm.is_ready or self.warm.is_off, "a warm process")

    def environments(self, ranks: int, **more: str) -> dict[int, dict[str, str]]:
        own = {"DTJ_ATTEMPT": "1", "DTJ_AGENT_SOCKET": "/nowhere", "IN_WORKER": "1", "MASTER_PORT": "29500"}
        own = {**own, "TORCHELASTIC_RESTART_COUNT": "0", **more}
        return {rank: {**os.environ, **own, "RANK": str(rank)} for rank in range(ranks)}

    def begin(self, command: list[str], ranks: int = 1, plain: bool = False, **more: str) -> None:
        self.results, self.output, self.gone, self.ranks = {}, b"", False, ranks
        self.supervisor.before_strangers = (lambda: None) if plain else self.starter_callback
        (self.plain if plain else self.starter).start(command, self.environments(ranks, **more))

    def stop(self, grace: float = 0.0) -> None:
        self.starter.cancel()
        self.supervisor.stop(grace)
        self.until(lambda: self.gone, "the workers to be gone")

    def finish(self) -> dict[int, list[Any]]:
        """Waits for all ranks. Returns exit code and output by rank."""
        self.until(lambda: len(self.results) == self.ranks, "the end of all ranks")
        self.stop()
        for rank, result in self.results.items():
            prefix = b"[rank %d] " % rank
            lines = [line[len(prefix) :] for line in self.output.splitlines() if line.startswith(prefix)]
            result[1] = b"\n".join(lines).decode()
        return self.results

    def run(self, command: list[str], ranks: int = 1, plain: bool = False, **more: str) -> dict[int, list[Any]]:
        self.begin(command, ranks, plain, **more)
        return self.finish()

    def close(self) -> None:
        self.warm.close()
