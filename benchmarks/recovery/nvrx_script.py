"""The script inside NVRx's in-process restart, with the shortest intervals that it accepts for a recovery."""

# No `from __future__ import annotations`: NVRx reads the annotations of the function that it wraps as classes.
import os
import sys
from datetime import timedelta
from pathlib import Path

import nvidia_resiliency_ext.inprocess as inprocess

sys.path.insert(0, str(Path(__file__).parent))
import script

TUNED = {
    "monitor_thread_interval": timedelta(seconds=0.05),
    "monitor_process_interval": timedelta(seconds=0.05),
    "heartbeat_interval": timedelta(seconds=0.1),
    "progress_watchdog_interval": timedelta(seconds=0.1),
    "last_call_wait": timedelta(seconds=0.05),
    "termination_grace_time": timedelta(seconds=0.1),
}


def train() -> None:
    """Enters the training again after each fault."""
    script.main()


if __name__ == "__main__":
    store = {"port": int(os.environ["RECOVERY_STORE_PORT"]), "timeout": timedelta(seconds=60)}
    inprocess.Wrapper(store_kwargs=store, **(TUNED if os.environ.get("RECOVERY_TUNED") else {}))(train)()
