"""Leaders that end twenty times at random under load: the test of the control plane, which checks each object."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ENDS = 20
# The worker's name gives its agents addresses that no other test uses.
ENV = {**os.environ, "PYTEST_XDIST_WORKER": "gw90", "DTJ_LEADER_ENDS": str(ENDS)}
ROOT = Path(__file__).resolve().parents[2]
TEST = "tests/integration/controlplane/test_leader_election.py::test_leaders_that_end_at_random_lose_and_double_nothing"


def ended_at_random() -> dict[str, Any]:
    """Runs the test. `passed`: no object was lost or made twice."""
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", TEST]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=900, env=ENV)
    seed = re.search(r"seed (\d+)", done.stdout)
    if done.returncode != 0:
        print(done.stdout[-8000:], file=sys.stderr)
    return {
        "ends": ENDS,
        "passed": done.returncode == 0,
        "seconds": time.monotonic() - began,
        "seed": int(seed[1]) if seed else None,
    }
