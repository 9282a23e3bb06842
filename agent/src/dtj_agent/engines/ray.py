"""Ray: a Ray node in each pod, and the job's command once, beside the head, in the pod with rank 0.

The command is a Ray driver: `ray.init()` and the trainers and tuners of Ray connect to this cluster by RAY_ADDRESS.
Ray counts the CPUs and GPUs of each pod itself.
"""

from __future__ import annotations

import posixpath
import re
from typing import Dict, List, Mapping, Sequence

from dtj_agent.engines import Engine, Place, host_port

# The ports of Ray's workers are chosen by the kernel, because the nodes of `dtj run` share an address.
FLAGS = ("--disable-usage-stats", "--min-worker-port=0", "--max-worker-port=0")
# `ray start` returns when the head serves. A head that never does is a failed rank, and so a new attempt.
HEAD = """
import os, subprocess, sys
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
here, port, *command = sys.argv[1:]
flags = %r
subprocess.run([*RAY, "start", "--head", "--node-ip-address=" + here, "--port=" + port,
                "--include-dashboard=false", *flags], check=True, stdout=sys.stderr, timeout=300)
os.execvp(command[0], command)
""" % (list(FLAGS),)
# The deadline is that of a head whose pod imports Ray from a slow volume.
NODE = """
import os, socket, sys, time
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
here, head, port = sys.argv[1:]
deadline = time.monotonic() + 300
while True:
    try:
        socket.create_connection((head, int(port)), 5).close()
        break
    except OSError as error:
        if time.monotonic() > deadline:
            sys.exit("no Ray head at %%s:%%s after 300 s: %%s" %% (head, port, error))
        time.sleep(0.2)
address = "[%%s]:%%s" %% (head, port) if ":" in head else "%%s:%%s" %% (head, port)
os.execv(sys.executable, [*RAY, "start", "--block", "--address=" + address, "--node-ip-address=" + here, *%r])
""" % (list(FLAGS),)


def environment(place: Place, inherited: Mapping[str, str]) -> Dict[str, str]:
    """Returns the address of the head."""
    return {"RAY_ADDRESS": host_port(place.members[0])}


def defaults(local_size: int) -> Dict[str, str]:
    """Returns what keeps Ray from sending usage statistics."""
    return {"RAY_USAGE_STATS_ENABLED": "0"}


def command(place: Place, written: Sequence[str]) -> List[str]:
    """Returns what starts the Ray node of a pod; the head then becomes the job's command."""
    here, (head, port) = place.members[place.node_rank][0], place.members[0]
    # The Python that runs the job's script has Ray.
    named = re.fullmatch(r"(?:python|pypy)[\d.]*", posixpath.basename(written[0]))
    python = written[0] if named else "python3"
    if place.node_rank == 0:
        return [python, "-c", HEAD, here, str(port), *written]
    return [python, "-c", NODE, here, head, str(port)]


ENGINE = Engine(
    environment, defaults, agent_store=False, rank_ports=True, warm=None, command=command, one_rank=True,
    rank_zero_decides=True,
)  # fmt: skip
