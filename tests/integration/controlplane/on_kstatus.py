"""The health that Flux sees: kstatus itself, on statuses that the planner wrote.

In `make test-long`, because kstatus is built first.
"""

from __future__ import annotations

import json
import subprocess

import pytest

from hack.cluster import gobuild
from tests.integration.controlplane.test_health_rule import CASES

# docs/health.md has this table. kstatus looks at the generations and at the condition Stalled, and at nothing else.
EXPECTED = {
    "a job whose change nobody has seen": "InProgress",
    "a job of another version": "Failed",
}


@pytest.mark.parametrize("case", CASES)
def test_kstatus_waits_for_the_operator_and_fails_for_no_training(case: str) -> None:
    build, _, _ = CASES[case]
    done = subprocess.run(
        [gobuild.binary("kstatus")], input=json.dumps(build()), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.partition("|")[0] == EXPECTED.get(case, "Current"), done.stdout
