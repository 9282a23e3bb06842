"""Forks the workers of a Ray node from processes of the pod that have imported torch and Ray Train.

Ray starts a worker as an interpreter that imports all of this by itself, for each worker group again. Here the raylet
runs `setup_worker.py` of this folder in the place of its own: it sends the worker's arguments, variables and streams to
the server, and lives as long as the worker that is forked. Whatever is wrong with that, it starts the worker as Ray
does.

Ray's native module reads its configuration once, when it is loaded, from variables that name the raylet and the job.
The server therefore has what needs no Ray; a fork of it for each raylet and job imports Ray, and is forked for workers.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import pkgutil
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from typing import Dict, List, MutableMapping, Optional, Sequence, Tuple

from dtj_agent.engines.ray import PRELOAD
from dtj_agent.ray_node import workers

MODULES = (
    "torch", "torch.distributed", "torch._dynamo", "torch.nn.parallel", "torch.profiler._cupti_monitor",
    "pandas", "pyarrow.fs", "pyarrow.dataset", "pydantic", "aiohttp", "requests", "jsonschema", "msgpack", "yaml",
)  # fmt: skip
"""Imports of a TorchTrainer's worker up to the first step of an optimizer, without Ray. An image may lack some."""
TRIED = ("2.60",)
"""Versions of Ray whose workers are forked by default. A job's `preload` has those of any other forked."""
SCRIPT, OWN_SCRIPT, SOCKET = "setup_worker.py", "own.py", "socket"
"""Files of the server's folder: the script, Ray's own of the same name, and where the server listens."""
LOOK_SECONDS = 1.0
SEND_SECONDS = 30.0
NICENESS = "RAY_worker_niceness"
"""15 without it, as Ray's workers, and so that the imports do not delay the start of Ray's processes."""


def take_modules(environ: MutableMapping[str, str]) -> Optional[List[str]]:
    """Takes the job's modules out of the variables, which Ray and the job's command do not get.

    None where the job has its workers started as Ray does.
    """
    value = environ.pop(PRELOAD, None)
    return None if value is None else [name for name in value.split(",") if name]


def start(modules: Optional[Sequence[str]]) -> str:
    """Starts the server beside this process, and returns the script that raylets run to have workers forked.

    Empty if there is no server. This process must not have imported Ray.
    """
    ray = importlib.util.find_spec("ray")
    own = os.path.join(os.path.dirname(ray.origin or ""), "_private", "workers", SCRIPT) if ray is not None else ""
    if modules is None or not (modules or _version() in TRIED) or not os.path.exists(own):
        return ""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        folder = tempfile.mkdtemp(prefix="dtj-ray-")
        script = os.path.join(folder, SCRIPT)
        with open(script, "wb") as file:  # the agent may be a zipapp
            file.write(pkgutil.get_data("dtj_agent.ray_node", SCRIPT) or b"")
        os.symlink(own, os.path.join(folder, OWN_SCRIPT))
        listener.bind(os.path.join(folder, SOCKET))
    except OSError as error:
        listener.close()
        print("dtj: Ray's workers are not forked: %s" % error, file=sys.stderr, flush=True)
        return ""
    listener.listen(128)
    owner = os.getpid()
    between = os.fork()
    if between:
        listener.close()
        os.waitpid(between, 0)
        return script
    # The job's command gets no child that it does not know.
    if os.fork():
        os._exit(0)
    try:
        Server(listener, owner, folder, modules).run()
    finally:
        os._exit(1)


def _version() -> str:
    try:
        return ".".join(importlib.metadata.version("ray").split(".")[:2])
    except importlib.metadata.PackageNotFoundError:
        return ""  # a folder in PYTHONPATH


def use(script: str) -> None:
    """Makes the raylet that this process starts run `script` for each worker."""
    if script:
        importlib.import_module("ray._private.ray_constants").SETUP_WORKER_FILENAME = script  # type: ignore[attr-defined]


class Server:
    """Hands each request for a worker to the fork for its raylet and job."""

    def __init__(self, listener: socket.socket, owner: int, folder: str, modules: Sequence[str]) -> None:
        self._listener, self._owner, self._folder, self._modules = listener, owner, folder, modules
        self._jobs: Dict[Tuple[Tuple[str, str], ...], socket.socket] = {}
        """By those variables of a worker that Ray may read when it is loaded."""

    def run(self) -> None:
        """Imports, then serves as long as its owner lives."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.nice(int(os.environ.get(NICENESS) or 15))
        began, imported = time.monotonic(), workers.import_all(MODULES)
        text = "dtj: Ray's workers are forked with %d modules, imported in %.1f s"
        print(text % (imported, time.monotonic() - began), file=sys.stderr, flush=True)
        while is_alive(self._owner):
            readable = select.select([self._listener, *self._jobs.values()], [], [], LOOK_SECONDS)[0]
            for key, job in list(self._jobs.items()):
                if job in readable:  # its raylet has ended
                    self._jobs.pop(key).close()
            self._reap()
            if self._listener in readable:
                self._accept()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _accept(self) -> None:
        connection = self._listener.accept()[0]
        streams: List[int] = []
        try:
            connection.settimeout(SEND_SECONDS)
            data, streams, _, _ = socket.recv_fds(connection, workers.MESSAGE_BYTES, 3)
            variables = workers.Request.read(data).environment
            key = tuple(sorted(item for item in variables.items() if item[0].startswith("RAY_")))
            if key not in self._jobs:
                self._jobs[key] = self._fork(variables, [connection.fileno(), *streams])
            socket.send_fds(self._jobs[key], [data], [connection.fileno(), *streams])
        except (OSError, ValueError) as error:
            print("dtj: a worker of Ray is not forked: %r" % error, file=sys.stderr, flush=True)
        finally:
            connection.close()
            for stream in streams:
                os.close(stream)

    def _fork(self, variables: Dict[str, str], request: List[int]) -> socket.socket:
        """Returns the connection to a new fork, which keeps none of the descriptors of this process."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork():
            theirs.close()
            ours.settimeout(SEND_SECONDS)
            return ours
        for each in (self._listener, ours, *self._jobs.values()):
            each.close()
        for descriptor in request:
            os.close(descriptor)
        try:
            workers.Job(theirs, variables).run(self._modules)
        finally:
            os._exit(1)

    def _reap(self) -> None:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


def is_alive(pid: int) -> bool:
    """Returns whether there is a process of this id."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
