"""A fork of the server for one raylet and job: imports Ray, and is forked for each worker."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from types import ModuleType, SimpleNamespace
from typing import Any, Dict, Iterator, List, NamedTuple, NoReturn, Sequence

from dtj_agent.ray_node import processes
from dtj_agent.warm import child

MODULES = (
    "ray._private.workers.default_worker", "ray.train", "ray.train.v2._internal.execution.controller",
    "ray.train.torch",
)  # fmt: skip
MESSAGE_BYTES = 1024 * 1024
LOOK_SECONDS = 1.0
DRAW_SECONDS = 10.0
OOM_SCORE = "RAY_worker_oom_score_adjustment"
"""1000 without it, as for the workers that a raylet starts."""
# A library that counts GPUs while it is imported must not open CUDA, which would be of no use in a fork.
# numpy's OpenBLAS would start threads, which a fork lacks. Ray gives a worker a thread for each CPU that it asks for.
IMPORTING = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "OMP_NUM_THREADS": "1"}


class Request(NamedTuple):
    """The wish of a setup_worker.py."""

    arguments: List[str]
    """Ray's program for a worker, and its arguments."""
    environment: Dict[str, str]
    variables: Dict[str, str]
    """Those of the worker's runtime environment, which Ray adds."""
    folder: str
    nice: int

    @classmethod
    def read(cls, data: bytes) -> Request:
        """Raises ValueError where it is none."""
        try:
            return cls(**json.loads(data))
        except TypeError as error:
            raise ValueError(str(error)) from None


class Job:
    """Forks a worker for each connection, kills it when the connection closes, and sends the worker's exit code."""

    def __init__(self, requests: socket.socket, variables: Dict[str, str]) -> None:
        self._requests, self._variables = requests, variables
        self._workers: Dict[int, socket.socket] = {}
        """By the id of the worker."""
        self._refuses = False

    def run(self, modules: Sequence[str]) -> None:
        """Imports Ray, then serves as long as there are the server and the raylet."""
        child.set_environment((), self._variables)
        with random_class_ids():
            import_all((*MODULES, *modules))
        if are_equal():
            self._refuses = True
            text = "dtj: Ray's workers are not forked: an import has drawn from Ray's random numbers"
            print(text, file=sys.stderr, flush=True)
        gc.collect()
        gc.freeze()
        woken, waker = socket.socketpair()
        waker.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(waker.fileno())
        raylet = int(self._variables.get("RAY_RAYLET_PID") or 0)
        while not raylet or processes.name(raylet):
            readable = select.select([self._requests, woken, *self._workers.values()], [], [], LOOK_SECONDS)[0]
            for pid, connection in list(self._workers.items()):
                if connection in readable:  # setup_worker.py has ended
                    os.kill(pid, signal.SIGKILL)
                    self._workers.pop(pid).close()
            if woken in readable:
                woken.recv(4096)
            self._reap()
            if self._requests in readable and not self._take():
                break
        for pid in self._workers:
            os.kill(pid, signal.SIGKILL)

    def _take(self) -> bool:
        """Forks a worker for the next request. Returns False if the server has ended."""
        data, descriptors, _, _ = socket.recv_fds(self._requests, MESSAGE_BYTES, 4)
        if not data:
            return False
        connection, streams = socket.socket(fileno=descriptors[0]), descriptors[1:]
        # Its other end is closed if setup_worker.py has started the worker itself.
        if not self._refuses and not select.select([connection], [], [], 0)[0]:
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                for each in (self._requests, connection, *self._workers.values()):
                    each.close()
                become(Request.read(data), list(streams))
            self._workers[pid] = connection
            _send(connection, b"+")
        else:
            connection.close()
        for stream in streams:
            os.close(stream)
        return True

    def _reap(self) -> None:
        while self._workers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            connection = self._workers.pop(pid, None)
            if connection is not None:
                _send(connection, b"%d" % processes.exit_code(status))
                connection.close()


def _send(connection: socket.socket, data: bytes) -> None:
    try:
        connection.send(data, socket.MSG_NOSIGNAL)
    except OSError:
        pass  # it has ended, and the next look kills its worker


def import_all(modules: Sequence[str]) -> int:
    """Imports those modules that there are, and returns the number of all that are loaded."""
    own = {name: os.environ.get(name) for name in IMPORTING}
    for name, value in IMPORTING.items():
        os.environ.setdefault(name, value)
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:
            pass  # an image without torch
        except Exception as error:  # noqa: BLE001 (whoever needs it will see the reason)
            print("dtj: %s is not imported ahead: %r" % (module, error), file=sys.stderr, flush=True)
    for name, before in own.items():
        if before is None:
            os.environ.pop(name, None)
    return len(sys.modules)


@contextlib.contextmanager
def random_class_ids() -> Iterator[None]:
    """Draws the ids of classes that imports make actors of from the kernel.

    Ray's generator is seeded when it is first used, and forks would then draw the same ids of tasks.
    """
    actor: Any = importlib.import_module("ray.actor")
    own = getattr(actor, "ActorClassID", None)
    if own is None:
        yield
        return
    actor.ActorClassID = SimpleNamespace(from_random=lambda: own(os.urandom(own.size())))
    try:
        yield
    finally:
        actor.ActorClassID = own


def are_equal() -> bool:
    """Returns whether two forks of this process would draw the same ids, or can't be compared in time."""
    drawn = []
    for _ in range(2):
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                ids: Any = importlib.import_module("ray._raylet")
                os.write(writer, ids.UniqueID.from_random().binary())
            finally:
                os._exit(0)
        os.close(writer)
        is_answered = select.select([reader], [], [], DRAW_SECONDS)[0]
        drawn.append(os.read(reader, 4096) if is_answered else b"")
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return not all(drawn) or drawn[0] == drawn[1]


def become(request: Request, streams: List[int]) -> NoReturn:
    """Makes this fork the worker of a request, and runs Ray's program in it."""
    os.setpgid(0, 0)  # Ray kills the group of a worker that has ended
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.setpriority(os.PRIO_PROCESS, 0, max(request.nice, os.getpriority(os.PRIO_PROCESS, 0)))
    try:
        with open("/proc/self/oom_score_adj", "w") as file:  # as the raylet has it for a worker that it starts
            file.write(request.environment.get(OOM_SCORE) or "1000")
    except OSError:
        pass  # a sandbox without it
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child.prepare(learns=False)
    child.set_environment((), request.environment)
    os.chdir(request.folder)
    importlib.import_module("ray._private.utils").update_envs(request.variables)
    follow_threads()
    program = request.arguments[0]
    sys.argv = request.arguments
    sys.path[:0] = [os.path.dirname(program)]
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__.update(__file__=program, __builtins__=builtins)
    code = 1
    try:
        with open(program, "rb") as file:
            exec(compile(file.read(), program, "exec"), main.__dict__)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 (the end of this process)
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def follow_threads() -> None:
    """Gives torch the threads that Ray states in OMP_NUM_THREADS for the first task, which torch read too early."""
    utils: Any = importlib.import_module("ray._private.utils")
    state, torch = getattr(utils, "set_omp_num_threads_if_unset", None), sys.modules.get("torch")
    if state is None or torch is None:
        return

    def stated() -> bool:
        utils.set_omp_num_threads_if_unset = state
        done = bool(state())
        if done:
            torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        return done

    utils.set_omp_num_threads_if_unset = stated
