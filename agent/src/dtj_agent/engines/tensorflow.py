"""TensorFlow: TF_CONFIG, with every rank as a worker that listens on a port of its own.

`MultiWorkerMirroredStrategy` takes worker 0 as the chief. A lost chief is a lost rank: the next
attempt has another one, and fresh ports.
"""

from __future__ import annotations

import json
from typing import Dict, Mapping

from dtj_agent.engines import Engine, Place, host_port
from dtj_agent.warm_needs import WarmNeeds


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


LIBRARIES = ("TF_", "XLA_", "KERAS_", "CUDA_", "NVIDIA_", "HIP_", "ROCR_", "OMP_", "KMP_", "ONEDNN_", "MKL_")
WARM = WarmNeeds(
    per_rank=("TF_CONFIG",),
    per_attempt=("TF_CONFIG",),
    coordinator=("TF_CONFIG",),
    import_time=(*LIBRARIES, "PYTHON", "LD_", "MALLOC_"),
    script_sets=LIBRARIES,
    log_levels=("TF_CPP_",),
    devices=("tensorflow.python.eager.context:_context._context_handle",),
)
ENGINE = Engine(environment, defaults, agent_store=False, rank_ports=True, warm=WARM)
