"""The script's model and step under torchft: each process is a replica group of one rank.

The log has the form of script.py's. A process begins a new entry when the group that commits a step has changed:
after a step that was not committed, and with each change of size. A replica that heals does not take part in the step.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

sys.path.insert(0, str(Path(__file__).parent))
import script

LOOPBACK = "127.0.0.1"


def main() -> None:
    """Trains until the process is killed, with the timeouts of torchft's own example."""
    folder, pause = os.environ["RECOVERY_FOLDER"], float(os.environ["RECOVERY_STEP_SECONDS"])
    replica, count = int(os.environ["RECOVERY_REPLICA"]), int(os.environ["RECOVERY_REPLICAS"])
    log = os.open(f"{folder}/log/{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    store = dist.TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
    module, truth = script.task()
    adamw = torch.optim.AdamW(module.parameters(), lr=1e-3)

    def load(state: dict[str, Any]) -> None:
        module.load_state_dict(state["model"])
        adamw.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"model": module.state_dict(), "optimizer": adamw.state_dict()},
        replica_id=f"replica-{replica}",
        timeout=timedelta(seconds=30),
        rank=0,
        world_size=1,
        store_addr=LOOPBACK,
        store_port=store.port,
        hostname=LOOPBACK,
    )
    model, optimizer = DistributedDataParallel(manager, module), Optimizer(manager, adamw)
    entries, group = 0, 0
    while True:
        optimizer.zero_grad()
        before = manager.current_step()
        script.loss(model, truth, before, count, replica).backward()
        optimizer.step()
        step, size, now = manager.current_step(), manager.num_participants(), time.monotonic()
        if step == before:
            group = 0
        elif manager.is_participating():
            if group != size:
                os.write(log, f"begin {now:.6f} {entries} {replica} {size} {os.getpid()}\n".encode())
                entries, group = entries + 1, size
            os.write(log, f"step {now:.6f} {step}\n".encode())
        time.sleep(pause)


if __name__ == "__main__":
    main()
