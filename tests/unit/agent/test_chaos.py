"""Real agents under random faults, one after another and two at a time; the job must recover and succeed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from pathlib import Path

from tests.lib.waiting import wait_until
from tests.unit.agent.harness import Group, kill, running

FAULTS = int(os.environ.get("DTJ_CHAOS_FAULTS", "6"))
SEED = int(os.environ.get("DTJ_CHAOS_SEED", "1"))


def inject(group: Group, rng: random.Random, number: int, attempt: int) -> str:
    """Injects one fault and returns its name. An agent that was killed is started again."""
    ordinal = rng.randrange(group.replicas)
    kind = rng.choice(["worker", "two workers", "agent", "pod", "two pods", "eviction", "frozen worker killed"])
    if "worker" in kind:
        group.wait_attempt(attempt)
        for pid in [
            group.worker(rank) for rank in rng.sample(range(group.replicas), 2 if kind == "two workers" else 1)
        ]:
            for signal_ in [signal.SIGSTOP, signal.SIGKILL][not kind.startswith("frozen") :]:
                with contextlib.suppress(ProcessLookupError):  # the second of two may be gone already
                    kill(pid, signal_)
        return kind
    victims = rng.sample(range(group.replicas), 2) if kind == "two pods" else [ordinal]
    for victim in victims:
        group.agents[victim].send_signal(signal.SIGTERM if kind == "eviction" else signal.SIGKILL)
        group.wait_exit(victim)
    for victim in victims:
        disk = f"state-{victim}" if kind == "agent" else f"disk-{victim}-{number}"
        group.start(victim, DTJ_STATE_DIR=str(group.folder / disk))
    return f"{kind} {victims}"


def test_job_succeeds_despite_random_kills(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    with running(tmp_path, 3, DTJ_MAX_RESTARTS="1000", DTJ_CHECKPOINT_DIR=str(tmp_path / "volume")) as group:
        done = []
        for number in range(FAULTS):
            status = wait_until(
                f"the group to run, after {done}",
                lambda: (s := group.status()) and s["phase"] == "Running" and s,
                detail=group.logs,
            )
            before = status["attempt"]
            if rng.random() < 0.7:
                group.wait_attempt(before)
            done.append(inject(group, rng, number, before))
            wait_until(
                f"the next attempt, after {done}",
                lambda before=before: group.status().get("attempt", 0) > before,
                detail=group.logs,
            )
        group.wait_attempt(group.status()["attempt"])
        restarts = group.status()["restarts"]
        assert restarts["inPlace"] + restarts["pod"] >= FAULTS
        group.tell("finish")
        assert [group.wait_exit(ordinal) for ordinal in range(3)] == [0, 0, 0]
        assert group.outcome(0) == group.outcome(1) == group.outcome(2)
