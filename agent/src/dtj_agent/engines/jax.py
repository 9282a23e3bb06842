"""JAX: `jax.distributed.initialize()` without arguments finds the coordinator, the number of processes and its own.

JAX 0.10 reads the coordinator's address from a variable of its own. The number of processes and the
process id have no such variable: JAX asks the cluster that it detects. Of these clusters, only Open
MPI and SLURM are known by variables alone, so this engine sets the variables of Open MPI. JAX would
also give each process of such a cluster the one GPU of its local rank, so JAX_LOCAL_DEVICE_IDS names
all GPUs where a pod has one rank.
"""

from __future__ import annotations

from typing import Dict, Mapping

from dtj_agent.engines import Engine, Place, host_port
from dtj_agent.warm_needs import WarmNeeds

LOCAL_DEVICES = "JAX_LOCAL_DEVICE_IDS"
COMPILER = ("JAX_", "XLA_", "TF_", "TPU_", "LIBTPU_", "PJRT_", "CUDA_", "NVIDIA_", "HIP_", "ROCR_", "OMP_")


def environment(place: Place, inherited: Mapping[str, str]) -> Dict[str, str]:
    """Returns what `initialize` reads, and the names that Kubeflow's JAX runtime gives to scripts."""
    found = {
        "JAX_COORDINATOR_ADDRESS": host_port(place.master),
        # Without it the coordinator listens on all addresses of the pod.
        "JAX_COORDINATOR_BIND_ADDRESS": host_port(place.master),
        "JAX_NUM_PROCESSES": str(place.world_size),
        "JAX_PROCESS_ID": str(place.rank),
        "OMPI_MCA_orte_hnp_uri": "0.0;tcp://%s:%d" % place.master,
        "OMPI_COMM_WORLD_SIZE": str(place.world_size),
        "OMPI_COMM_WORLD_RANK": str(place.rank),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(place.local_rank),
    }
    if place.local_size == 1 and place.gpus > 1 and LOCAL_DEVICES not in inherited:
        found[LOCAL_DEVICES] = ",".join(map(str, range(place.gpus)))
    return found


def defaults(local_size: int) -> Dict[str, str]:
    """Returns nothing: JAX's own defaults suit."""
    return {}


WARM = WarmNeeds(
    per_rank=("JAX_COORDINATOR_", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", LOCAL_DEVICES, "OMPI_"),
    per_attempt=("JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_BIND_ADDRESS", "OMPI_MCA_orte_hnp_uri"),
    coordinator=("JAX_COORDINATOR_ADDRESS",),
    import_time=(*COMPILER, "PYTHON", "LD_", "MALLOC_"),
    script_sets=COMPILER,
    log_levels=("TF_CPP_",),
    devices=("jax._src.xla_bridge:_backends",),
)
ENGINE = Engine(environment, defaults, agent_store=False, rank_ports=False, warm=WARM)
