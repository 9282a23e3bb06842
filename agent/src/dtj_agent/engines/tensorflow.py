"""TensorFlow: TF_CONFIG, with every rank as a worker that listens on a port of its own.

`MultiWorkerMirroredStrategy` takes worker 0 as the chief. A lost chief is a lost rank: the next
attempt has another one, and fresh ports.
"""

from __future__ import annotations

import json
from typing import Dict, Mapping

from dtj_agent.engines import Engine, Place, host_port


def environment(place: Place, inherited: Mapping[str, str]) -> Dict[str, str]:
    """Returns TF_CONFIG: the cluster's addresses in the order of the ranks, and the task of this rank."""
    workers = [
        host_port((host, port + local_rank)) for host, port in place.members for local_rank in range(place.local_size)
    ]
    config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": place.rank}}
    return {"TF_CONFIG": json.dumps(config)}


def defaults(local_size: int) -> Dict[str, str]:
    """Returns nothing: TensorFlow's own defaults suit."""
    return {}


# Keras draws default seeds while it is imported, so no process ahead may import it: the script may seed before.
ENGINE = Engine(environment, defaults, agent_store=False, rank_ports=True, warm=None)
