"""DeepSpeed: the environment of torch, and the variables that DeepSpeed's own launcher adds to it."""

from __future__ import annotations

from typing import Dict, Mapping

from dtj_agent.engines import Place, torch


def environment(place: Place, inherited: Mapping[str, str]) -> Dict[str, str]:
    """Returns torch's variables, and those of `deepspeed.launcher.launch`."""
    return {
        **torch.environment(place, inherited),
        "LOCAL_SIZE": str(place.local_size),
        "CROSS_RANK": str(place.node_rank),
        "CROSS_SIZE": str(place.nodes),
    }


WARM = torch.WARM._replace(per_rank=(*torch.WARM.per_rank, "LOCAL_SIZE", "CROSS_"))
ENGINE = torch.ENGINE._replace(environment=environment, warm=WARM)
