"""The rules that docs/restarts.md recommends are valid, and match the failures that the page is about."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from dtj_agent.group import restart_rules
from dtj_core.api import violations
from tests.unit.api.specs import job

PAGE = Path(__file__).resolve().parents[3] / "docs" / "restarts.md"
BLOCKS = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)]
EXAMPLES = [block for block in BLOCKS if "restart" in block]
FAILURES = [
    ({"exitCode": 85}, "RestartFree"),
    ({"exitCode": 1, "logTail": "RuntimeError: CUDA error: uncorrectable ECC error encountered"}, "RestartElsewhere"),
    ({"exitCode": 1, "logTail": "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."}, "RestartElsewhere"),
    ({"exitCode": 1, "logTail": "ValueError: the loss is nan at step 71"}, "Fail"),
    ({"reason": "Straggler", "message": "rank 3 takes 1.6 times as long as the median rank"}, "RestartElsewhere"),
    ({"exitCode": 1, "logTail": "step 71 loss 0.31\nRuntimeError: NCCL error"}, None),
]


@pytest.mark.parametrize(("failure", "action"), FAILURES)
def test_rules_of_the_page_decide_as_it_describes(failure: dict[str, object], action: str | None) -> None:
    rules = [rule for example in EXAMPLES for rule in example["restart"]["rules"]]
    assert len(rules) == 4
    assert violations(job({"restart": {"rules": rules}})) == ()
    found = restart_rules.first_match(restart_rules.read(rules)[0], {"reason": "WorkerFailed", **failure})
    assert (found and found.action) == action
