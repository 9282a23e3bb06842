"""Ray: a Ray node in each pod, and the job's command once, beside the head, in the pod with rank 0.

The command is a Ray driver: `ray.init()` and the trainers and tuners of Ray connect to this cluster by RAY_ADDRESS.
Ray counts the CPUs and GPUs of each pod itself.
"""

from __future__ import annotations

import posixpath
import re
from typing import Dict, List, Mapping, Sequence

import dtj_agent
import dtj_contract
from dtj_agent.engines import Engine, Place, host_port
from dtj_contract import names

# The package may be in a zipapp. None of these paths stays in the sys.path of a worker of Ray.
PROGRAM = (
    "import sys\n"
    "if sys.path[:1] == ['']: del sys.path[0]\n"
    "roots = sys.argv.pop(1).split('\\n'); sys.path[:0] = roots\n"
    "from dtj_agent.ray_node import main\n"
    "del sys.path[:len(roots)]\n"
    "main.main(sys.argv[1:])\n"
)
PRELOAD = "DTJ_RAY_PRELOAD"
"""Variable of the Ray node: modules of the job that forked workers have, none where it is empty. Without it, none is
forked."""


def environment(place: Place, inherited: Mapping[str, str]) -> Dict[str, str]:
    """Returns the address of the head, and unless `warmWorkers` is Never the modules of `preload`."""
    found = {"RAY_ADDRESS": host_port(place.members[0])}
    if inherited.get(names.ENV_WARM_WORKERS) != names.WARM_NEVER:
        found[PRELOAD] = inherited.get(names.ENV_PRELOAD, "")
    return found


def defaults(local_size: int) -> Dict[str, str]:
    """Returns what keeps Ray from sending usage statistics, and what has it notice a loss sooner.

    A raylet is lost after five checks in a row that fail at once, because nobody listens at its port: 2.5 s instead of
    15. One that is slow or can't be reached still has 10 s for each check.
    """
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_health_check_period_ms": "500",
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    }


def command(place: Place, written: Sequence[str]) -> List[str]:
    """Returns what starts the Ray node of a pod; the head then becomes the job's command."""
    here, (head, port) = place.members[place.node_rank][0], place.members[0]
    # The Python that runs the job's script has Ray.
    named = re.fullmatch(r"(?:python|pypy)[\d.]*", posixpath.basename(written[0]))
    roots = {posixpath.dirname(posixpath.abspath(package.__path__[0])) for package in (dtj_agent, dtj_contract)}
    start = [written[0] if named else "python3", "-c", PROGRAM, "\n".join(sorted(roots))]
    if place.node_rank == 0:
        return [*start, "head", here, str(port), *written]
    return [*start, "node", here, head, str(port)]


ENGINE = Engine(
    environment, defaults, agent_store=False, rank_ports=True, warm=None, command=command, one_rank=True,
    rank_zero_decides=True,
)  # fmt: skip
