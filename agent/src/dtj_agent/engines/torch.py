"""torch: the variables that torchrun 2.13 sets, and a rendezvous store on MASTER_PORT."""

from __future__ import annotations

from typing import Dict, Mapping

from dtj_agent.engines import Engine, Place
from dtj_agent.warm_needs import WarmNeeds

USE_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
WARM = WarmNeeds(
    # For the first step of a DistributedDataParallel script. More than half of the time is torch._dynamo,
    # which the first optimizer step imports.
    modules=(
        "torch", "torch.distributed", "torch._dynamo", "torch.nn.parallel", "torch.profiler._cupti_monitor",
        "dtj_trainer.state", "dtj_trainer.trainer",
    ),
    per_rank=("TORCHELASTIC_", "MASTER_", "GROUP_", "NODE_RANK", "ROLE_"),
    per_attempt=("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_ERROR_FILE"),
    import_time=(
        "OMP_", "MKL_", "OPENBLAS_", "KMP_", "GOMP_", "CUDA_", "HIP_", "ROCR_", "NVIDIA_", "PYTORCH_", "TORCH_",
        "TORCHINDUCTOR_", "TORCHDYNAMO_", "TRITON_", "PYTHON", "LD_", "MALLOC_",
    ),
)  # fmt: skip


def environment(place: Place, inherited: Mapping[str, str]) -> Dict[str, str]:
    """Returns everything that torchrun sets. RESTART_COUNT is attempt - 1: the first attempt is 1."""
    host, port = place.master
    return {
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "GROUP_RANK": str(place.node_rank),
        "NODE_RANK": str(place.node_rank),  # not torchrun's; Composer and others read it
        "GROUP_WORLD_SIZE": str(place.nodes),
        "ROLE_RANK": str(place.rank),
        "ROLE_WORLD_SIZE": str(place.world_size),
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": place.run_id,
        "TORCHELASTIC_RESTART_COUNT": str(place.attempt - 1),
        "TORCHELASTIC_MAX_RESTARTS": str(place.max_restarts),
        USE_AGENT_STORE: str(inherited.get(USE_AGENT_STORE) != "False"),
        "TORCHELASTIC_ERROR_FILE": place.error_file,
    }


def defaults(local_size: int) -> Dict[str, str]:
    """Returns torchrun's defaults."""
    threads = {"OMP_NUM_THREADS": "1"} if local_size > 1 else {}
    return {**threads, "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}


ENGINE = Engine(environment, defaults, agent_store=True, rank_ports=False, warm=WARM)
