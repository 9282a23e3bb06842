"""Starts the ranks of one trial and waits for their end, for a limited time."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtj.bench import link
from dtj.bench.plan import Cell
from dtj.errors import LocalRunError
from dtj.local import processes
from dtj_contract import names

TORCHRUN = "torchrun-ddp"
"""The arm whose ranks torchrun starts."""
MODULE = ("-m", "dtj_trainer.measure", "bench")
LOOPBACK, LOOPBACK_DEVICE = "127.0.0.1", "lo"
LINK_PORT = 29571
FACTS_SECONDS = 300.0
POLL_SECONDS = 0.05
_OF_TORCHRUN = re.compile(
    r"(?:RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_.*|ROLE_.*|NODE_RANK|MASTER_.*|TORCHELASTIC_.*|DTJ_.*)"
)
_ERROR = re.compile(r"^(?:\S*: )?[\w.]*(?:Error|Exception|Failed|Mismatch|Invalid|Interrupt)\b.*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The options that all trials share."""

    python: str
    model: str
    steps: int
    warmup: int
    threads: int
    timeout: float
    """Seconds of a trial, from the start of its ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """One process of a trial."""

    command: list[str]
    environment: dict[str, str]
    """Beside that of dtj."""


def starts(
    cell: Cell, options: Options, *, nodes: Sequence[str], cores: Sequence[int], port: int, out: Path
) -> list[Start]:
    """Returns the processes of a trial: one a rank, or under torchrun one a node (pure).

    Args:
        cell: What is measured.
        options: How it is measured.
        nodes: The namespaces; none without a shaped link. A single rank needs one of them.
        cores: The CPU of each rank.
        port: Of the rendezvous.
        out: The file that rank 0 writes.
    """
    used = list(nodes[: 1 if cell.world == 1 else None]) or [""]
    local = cell.world // len(used)
    device, address = (link.DEVICE, link.ADDRESSES[0]) if nodes else (LOOPBACK_DEVICE, LOOPBACK)
    common = {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": device,
        "OMP_NUM_THREADS": str(options.threads),
    }
    if nodes:
        common["NCCL_SOCKET_IFNAME"] = device
    found: list[Start] = []
    for node, name in enumerate(used):
        own = ",".join(str(core) for core in cores[node * local : (node + 1) * local])
        prefix = link.within(name) if name else []
        work = [
            *MODULE, "--arm", cell.arm, "--model", options.model, "--batch", str(cell.global_batch),
            "--steps", str(options.steps), "--warmup", str(options.warmup), "--cores", own, "--out", str(out),
        ]  # fmt: skip
        if cell.arm == TORCHRUN:
            launcher = [
                "-m", "torch.distributed.run", "--nnodes", str(len(used)), "--node-rank", str(node),
                "--nproc-per-node", str(local), "--master-addr", address, "--master-port", str(port),
            ]  # fmt: skip
            found.append(Start(command=[*prefix, options.python, *launcher, *work], environment=common))
            continue
        for within in range(local):
            place = {
                "RANK": node * local + within, "WORLD_SIZE": cell.world, "LOCAL_RANK": within,
                "LOCAL_WORLD_SIZE": local, "GROUP_RANK": node, "GROUP_WORLD_SIZE": len(used),
            }  # fmt: skip
            environment = common | {key: str(value) for key, value in place.items()}
            found.append(Start(command=[*prefix, options.python, *work], environment=environment))
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a trial ended."""

    figures: dict[str, Any] | None
    """None: it failed."""
    reason: str = ""
    """Why it failed."""
    timed_out: bool = False


class Launcher:
    """Runs trials one after the other. Each process has the tag, by which it is found and killed."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.tag = f"bench-{uuid.uuid4().hex}"
        self.scratch = Path(tempfile.mkdtemp(prefix="dtj-bench-"))

    def facts(self) -> dict[str, Any]:
        """Returns what the ranks' interpreter can run. Raises LocalRunError if it lacks the trainer library."""
        python = self._options.python
        remedy = "install dtj-trainer[torch] there, or name another interpreter by --python"
        try:
            done = subprocess.run(
                [python, *MODULE, "--facts"],
                env=self._environment({}),
                capture_output=True,
                text=True,
                check=False,
                timeout=FACTS_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LocalRunError(f"--python {python}: {error}; {remedy}") from error
        if done.returncode:
            raise LocalRunError(f"--python {python}: {reason(done.stderr)}; {remedy}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    def run(self, cell: Cell, *, nodes: Sequence[str], cores: Sequence[int]) -> Outcome:
        """Runs one trial. No process of it is left at the end, which an exception may be.

        Args:
            cell: What is measured.
            nodes: The namespaces of the link; none without one.
            cores: The CPU of each rank.
        """
        out = self.scratch / "trial.json"
        out.unlink(missing_ok=True)
        port = LINK_PORT if nodes else _free_port()
        begun: list[tuple[subprocess.Popen[bytes], Path]] = []
        deadline = time.monotonic() + self._options.timeout
        try:
            for number, start in enumerate(starts(cell, self._options, nodes=nodes, cores=cores, port=port, out=out)):
                log = self.scratch / f"output-{number}.txt"
                with log.open("wb") as output:
                    process = subprocess.Popen(
                        start.command,
                        env=self._environment(start.environment),
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        cwd=self.scratch,
                        start_new_session=True,  # Ctrl-C is for dtj, which then ends the ranks
                    )
                begun.append((process, log))
            failed = _wait([process for process, _ in begun], deadline)
            if failed is None and out.exists():
                return Outcome(figures=json.loads(out.read_text(encoding="utf-8")))
            if failed == _TIMEOUT:
                last = reason(begun[0][1].read_text(errors="replace"))
                limit = f"not done after {self._options.timeout:g} s (--timeout)"
                return Outcome(figures=None, reason=f"{limit}; its last line: {last}", timed_out=True)
            number = failed or 0
            code = begun[number][0].returncode
            ended = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
            return Outcome(figures=None, reason=f"{ended}: {reason(begun[number][1].read_text(errors='replace'))}")
        finally:
            processes.kill_all(self.tag)
            for process, _ in begun:
                process.wait()

    def _environment(self, own: Mapping[str, str]) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not _OF_TORCHRUN.fullmatch(name)}
        if path := inherited.get("PYTHONPATH"):
            inherited["PYTHONPATH"] = _absolute(path)
        return {**inherited, **own, names.ENV_LOCAL_POD: self.tag}


_TIMEOUT = -1


def _wait(begun: Sequence[subprocess.Popen[bytes]], deadline: float) -> int | None:
    """Returns the number of the process that failed first, _TIMEOUT, or None when all have ended well."""
    while True:
        codes = [process.poll() for process in begun]
        failed = [number for number, code in enumerate(codes) if code]
        # A rank that a signal has killed comes before its peers, which miss it.
        if failed:
            return min(failed, key=lambda number: (codes[number] or 0) > 0)
        if all(code == 0 for code in codes):
            return None
        if time.monotonic() > deadline:
            return _TIMEOUT
        time.sleep(POLL_SECONDS)


def reason(output: str) -> str:
    """Returns the line of an output that names the error, or else its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    named = [line for line in lines if _ERROR.match(line)]
    return (named or lines or ["no output"])[0 if named else -1][:300]


def _absolute(path: str) -> str:
    """Makes the folders of PYTHONPATH absolute, because the ranks begin in another folder."""
    return os.pathsep.join(os.path.abspath(folder) for folder in path.split(os.pathsep) if folder)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        port: int = free.getsockname()[1]
    return port
