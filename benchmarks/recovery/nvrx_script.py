"""The script inside NVRx's in-process restart, with the shortest intervals that it accepts for a recovery."""

# No `from __future__ import annotations`: NVRx reads the annotations of the function that it wraps as classes.
import os
import sys
from datetime import timedelta
from pathlib import Path

import nvidia_resiliency_ext.inprocess as inprocess
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
import script

TUNED = os.environ.get("RECOVERY_TUNED") == "1"
INTERVALS = {
    "monitor_thread_interval": timedelta(seconds=0.05),
    "monitor_process_interval": timedelta(seconds=0.05),
    "heartbeat_interval": timedelta(seconds=0.1),
    "progress_watchdog_interval": timedelta(seconds=0.1),
    "last_call_wait": timedelta(seconds=0.05),
    "termination_grace_time": timedelta(seconds=0.1),
}

STORE = dist.TCPStore(
    os.environ["MASTER_ADDR"],
    int(os.environ["MASTER_PORT"]),
    is_master=os.environ["RANK"] == "0",
    wait_for_workers=False,
)


def train(call: inprocess.CallWrapper | None = None) -> None:
    """Enters the training again after each fault, with keys of its own in a store that stays."""
    store = dist.PrefixStore(str(call.iteration), STORE)
    rendezvous = {"store": store, "rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    # NVRx can't abort gloo: a rank whose neighbours in the collective live waits until the collective times out.
    script.main(**rendezvous, **({"timeout": timedelta(seconds=2)} if TUNED else {}))


if __name__ == "__main__":
    store = {"port": int(os.environ["RECOVERY_STORE_PORT"]), "timeout": timedelta(seconds=60)}
    inprocess.Wrapper(store_kwargs=store, **(INTERVALS if TUNED else {}))(train)()
