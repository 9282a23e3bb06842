"""Horovod: the variables of `horovodrun --gloo`, with the agent's store as the rendezvous server.

A script of torch may use torch.distributed beside Horovod, so the environment of torch is part of it.
"""

from __future__ import annotations

from typing import Dict, Mapping

from dtj_agent.engines import Place, torch

TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"
INTERFACE = "HOROVOD_GLOO_IFACE"


def environment(place: Place, inherited: Mapping[str, str]) -> Dict[str, str]:
    """Returns torch's variables, and those that Horovod 0.28's `gloo_run.create_slot_env_vars` sets."""
    host, port = place.master
    found = {
        **torch.environment(place, inherited),
        "HOROVOD_RANK": str(place.rank),
        "HOROVOD_SIZE": str(place.world_size),
        "HOROVOD_LOCAL_RANK": str(place.local_rank),
        "HOROVOD_LOCAL_SIZE": str(place.local_size),
        "HOROVOD_CROSS_RANK": str(place.node_rank),
        "HOROVOD_CROSS_SIZE": str(place.nodes),
        # Names the scope in which the ranks of a pod meet, so it must differ from pod to pod.
        "HOROVOD_HOSTNAME": "node-%d" % place.node_rank,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "[%s]" % host if ":" in host else host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
    }
    # Without it, gloo listens on the address of the pod's host name.
    if INTERFACE not in inherited and inherited.get("GLOO_SOCKET_IFNAME"):
        found[INTERFACE] = inherited["GLOO_SOCKET_IFNAME"]
    return found


def defaults(local_size: int) -> Dict[str, str]:
    """Returns torch's defaults, and time for ranks whose imports take longer than others'.

    Horovod waits 30 s for all ranks. The agents end an attempt in which a rank has died, so the longer wait delays
    no restart.
    """
    return {**torch.defaults(local_size), TIMEOUT: "300"}


WARM = torch.WARM._replace(
    per_rank=(*torch.WARM.per_rank, "HOROVOD_"),
    per_attempt=(*torch.WARM.per_attempt, "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
)
ENGINE = torch.ENGINE._replace(environment=environment, defaults=defaults, warm=WARM)
