"""The default grace of a failed group is only for workers that have a handler which can save something."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.lib.waiting import wait_until
from tests.unit.agent.harness import running

# An agent whose default grace is longer than any test.
PATIENT = "from dtj_contract import names; names.STOP_GRACE_SECONDS = 600.0; from dtj_agent.main import main; main()"
# Rank 0 fails once the others are ready; no rank ends by itself after SIGTERM.
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
plan = Path(os.environ["PLAN"])
def save(*_):
    (plan / "handled").touch()
    sys.exit(0)
for number in {handled}:
    signal.signal(number, {handler})
(plan / ("ready-" + os.environ["RANK"] + "-" + os.environ["DTJ_ATTEMPT"])).touch()
while os.environ["RANK"] != "0" or not (plan / "ready-1-1").exists():
    time.sleep(0.01)
sys.exit(3 if os.environ["DTJ_ATTEMPT"] == "1" else 0)
"""


@pytest.mark.parametrize(
    ("handled", "handler"),
    [("[]", "save"), ("[15]", "signal.SIG_IGN"), ("[15, 61]", "lambda *_: None")],
    ids=["no handler", "SIGTERM ignored", "the training library's handler"],
)
def test_worker_that_cannot_save_alone_is_killed_at_once(tmp_path: Path, handled: str, handler: str) -> None:
    with _group(tmp_path, handled, handler) as group:
        wait_until("attempt 2", (group.plan / "ready-1-2").exists, detail=group.logs)


def test_worker_with_a_handler_of_its_own_gets_the_grace(tmp_path: Path) -> None:
    with _group(tmp_path, "[15]", "save") as group:
        wait_until("attempt 2", (group.plan / "ready-1-2").exists, detail=group.logs)
        assert (group.plan / "handled").exists()


def test_explicit_grace_is_kept_for_workers_without_a_handler(tmp_path: Path) -> None:
    """The worker ignores SIGTERM, so it ends when the grace does."""
    with _group(tmp_path, "[15]", "signal.SIG_IGN", DTJ_STOP_GRACE_SECONDS="1") as group:
        wait_until("attempt 2", (group.plan / "ready-1-2").exists, detail=group.logs)
        assert group.status()["recoveries"][-1]["seconds"]["stop"] >= 0.9


def _group(tmp_path: Path, handled: str, handler: str, **environ: str):  # type: ignore[no-untyped-def]
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(handled=handled, handler=handler))
    return running(tmp_path, 2, [sys.executable, str(script)], [sys.executable, "-c", PATIENT], **environ)
