"""The training library's SIGTERM handler, as the agent sees it: it can't save without the other ranks."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import os, signal, torch
from dtj_agent.workers.signal_handlers import can_save_alone
from dtj_trainer import State
model = torch.nn.Linear(1, 1)
found = [can_save_alone(os.getpid())]
signal.signal(signal.SIGTERM, lambda *_: None)
found.append(can_save_alone(os.getpid()))
for step in State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)).steps(1):
    found.append(can_save_alone(os.getpid()))
found.append(can_save_alone(os.getpid()))
print(found)
"""


def test_handler_of_the_loop_is_known_to_the_agent_as_long_as_it_is_set() -> None:
    run = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "[False, True, False, True]"
