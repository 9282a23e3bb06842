"""Run by a raylet for each worker: has it forked (dtj_agent.ray_node.forks), and lives as long as the fork.

A worker that can't be forked is started as Ray does, by Ray's script of this name. On the standard library alone, and
apart from the agent's other modules, because this file is copied.
"""

from __future__ import annotations

import json
import os
import runpy
import select
import socket
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
CONTEXT, LANGUAGE, WORKER_TYPE = "--serialized-runtime-env-context=", "--language=", "--worker-type="
# The forks have imported their modules with other values of these.
IMPORT_TIME = (
    "OMP_", "MKL_", "OPENBLAS_", "KMP_", "GOMP_", "CUDA_", "HIP_", "ROCR_", "NVIDIA_", "PYTORCH_", "TORCH_",
    "TORCHINDUCTOR_", "TORCHDYNAMO_", "TRITON_", "PYTHON", "LD_", "MALLOC_", "RAY_",
)  # fmt: skip
READ_LATER = ("RAY_TRAIN_", "RAY_WARN_")
READY_SECONDS = 30.0
LOOK_SECONDS = 0.5


def variables(arguments: list[str]) -> dict[str, str] | None:
    """Returns the variables of the worker's runtime environment; None if it has more than variables, or unfit ones."""
    kinds = [each for each in arguments if each.startswith(WORKER_TYPE)]  # those that spill objects have one
    if LANGUAGE + "PYTHON" in arguments and not kinds:
        context = json.loads(next((each[len(CONTEXT) :] for each in arguments if each.startswith(CONTEXT)), "{}"))
        found = context.pop("env_vars", None) or {}
        fit = all(not name.startswith(IMPORT_TIME) or name.startswith(READ_LATER) for name in found)
        if fit and context.pop("py_executable", None) in (None, sys.executable) and not any(context.values()):
            return found
    return None


def forked(arguments: list[str], found: dict[str, str]) -> int | None:
    """Returns the exit code of a fork that ran as the worker; None if there was none."""
    request = {
        "arguments": [each for each in arguments if not each.startswith((CONTEXT, LANGUAGE))],
        "environment": dict(os.environ),
        "variables": found,
        "folder": os.getcwd(),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
    }
    raylet = os.getppid()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(os.path.join(HERE, "socket"))
        socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
        if not select.select([connection], [], [], READY_SECONDS)[0] or not connection.recv(1):
            return None  # the server still imports, or has ended
        try:
            while os.getppid() == raylet:
                if select.select([connection], [], [], LOOK_SECONDS)[0]:
                    return int(connection.recv(16) or b"1")
        except OSError:
            pass  # the server has ended
    return 1  # the end of the connection ends the fork


def main() -> None:
    code, arguments = None, sys.argv[1:]
    try:
        found = variables(arguments)
        if found is not None:
            code = forked(arguments, found)
    except (OSError, ValueError) as error:
        print("dtj: this worker is started as Ray does: %s" % error, file=sys.stderr, flush=True)
    if code is not None:
        os._exit(code)
    runpy.run_path(os.path.join(HERE, "own.py"), run_name="__main__")


if __name__ == "__main__":
    main()
