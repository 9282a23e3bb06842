"""Whenever the writers of a checkpoint are killed, the newest checkpoint is whole, and not older
than a reported one."""

from __future__ import annotations

import collections
import itertools
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from dtj_trainer.checkpoint import folder
from tests.unit.trainer.ranks import AgentSocket, ranks
from tests.unit.trainer.ranks_saves import counted_saves

pytestmark = pytest.mark.torch
SEED, KILLS = 11, int(os.environ.get("DTJ_SAVE_KILLS", "40"))


def phase(directory: Path, step: int) -> str:
    """Returns how far the save of `step` had come when its writers were killed, as its folder shows."""
    incomplete = list(directory.glob(f".incomplete-step-{step:08d}-*"))
    if not (directory / f"step-{step:08d}").is_dir():
        if not incomplete:
            return "no folder yet"
        return "renaming" if (incomplete[0] / "manifest.json").is_file() else "writing"
    going = [p for p in directory.iterdir() if "step-" in p.name and p.name != f"step-{step:08d}"]
    return "removing the old one" if going else "all done"


@pytest.mark.timeout(1200)
def test_save_killed_at_random_instants_leaves_a_whole_newest_checkpoint(
    tmp_path: Path,
) -> None:
    """Kills both ranks by SIGKILL, in any order.

    Half of the instants are drawn over the time that a save takes; the other half are its file
    operations, all in turn, so that a phase of microseconds is hit too. Each next group loads and
    checks each number.
    """
    directory, chance = tmp_path / "checkpoints", random.Random(SEED)
    hit: collections.Counter[str] = collections.Counter()
    newest, whole = 0, {"seconds": 0.0, "operations": 0}

    def one(kill: bool, at: int | None) -> None:
        nonlocal newest, whole
        heard: list[dict[str, Any]] = agent.heard
        heard.clear()
        with ranks(2, counted_saves, tmp_path, str(directory), str(agent.path), at) as group:
            group.wait_until(lambda: bool(heard))
            assert heard[0] == {"loaded": newest, "events": []}
            if not kill:
                group.wait_until(lambda: len(heard) == 2)
                whole = heard[1]
            elif at is None:
                time.sleep(chance.uniform(0, 1.1 * whole["seconds"]))  # the instant is what is drawn
                for p in chance.sample(group.processes, 2):
                    p.kill()
                    time.sleep(chance.choice([0, 0, 0.01]))
            if kill:
                codes = group.wait()
                assert -signal.SIGKILL in codes, f"{codes}\n{group.everything()}"
        if kill:
            hit[phase(directory, newest + 1)] += 1
        for path in folder.committed(directory):
            checkpoint = folder.read(path)
            folder.verify(checkpoint, checkpoint.manifest.files)
        found = max(int(p.name.removeprefix("step-")) for p in folder.committed(directory))
        assert found in (newest, newest + 1)
        assert found == newest + 1 or not any("committed" in h for h in heard), "reported, and then gone"
        newest = found

    with AgentSocket(tmp_path / "agent") as agent:
        one(False, None)
        one(False, None)  # the first has nothing to remove
        operations = whole["operations"]
        turn = itertools.cycle(chance.sample(range(operations), operations))
        for number in range(KILLS):
            one(True, next(turn) if number % 2 else None)
        one(False, None)
    print(f"seed {SEED}, {operations} file operations a save, killed while: {dict(hit)}")
    assert sum(hit.values()) == KILLS
    assert all(hit[p] for p in ("no folder yet", "writing", "renaming", "removing the old one")), hit
