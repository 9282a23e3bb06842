"""`dtj wait`: waits until a job has a condition, or can no longer get it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from datetime import UTC, datetime

from rich.console import Console

from dtj import durations
from dtj.cluster.client import Cluster
from dtj.cluster.verbs import QUALIFIED, connect
from dtj.errors import InputError, JobNotFound, WaitTimeout
from dtj.view.model import Snapshot
from dtj.view.plain import line
from dtj_contract import names
from dtj_core.plan.model import Object

# Length of one watch. Then the job is read again, so that a lost event delays nothing for longer.
WATCH_SECONDS = 30.0
UNSERVED_SECONDS = 30.0  # an operator writes a status within a second
DELETED = "delete"
TERMINAL = (names.COMPLETE, names.FAILED)
UNSERVED = (
    f"has had no status for {UNSERVED_SECONDS:.0f} s; check that the operator is running: "
    f"kubectl get pods -A -l app.kubernetes.io/name={names.MANAGER}"
)


def wait(flags: argparse.Namespace) -> int:
    """Waits for the condition.

    Returns 0 if it holds, 1 if it can no longer become true. Raises WaitTimeout and other DtjError.
    """
    wanted = condition(flags.condition)
    limit = durations.parse(flags.timeout, "--timeout") if flags.timeout else float("inf")
    cluster = connect(flags)
    qualified = f"{QUALIFIED}/{flags.name}"
    console = Console(stderr=True)
    unserved = time.monotonic() + UNSERVED_SECONDS
    with console.status("") as status:  # silent without a terminal
        for job in versions(cluster, flags.name, time.monotonic() + limit):
            if job is None:
                gone = wanted == DELETED
                console.print(
                    f"{qualified} {'deleted' if gone else 'was deleted while dtj waited'}",
                    highlight=False,
                    soft_wrap=True,
                )
                return 0 if gone else 1
            conditions = job.get("status", {}).get("conditions") or []
            held = [each["type"] for each in conditions if each["status"] == "True"]
            if wanted in held:
                print(f"{qualified} condition met")
                return 0
            ended = next((terminal for terminal in TERMINAL if terminal in held), None)
            if ended and wanted != DELETED:
                console.print(f"{qualified} is {ended}: {condition_text(job, ended)}", highlight=False, soft_wrap=True)
                return 1
            if "status" not in job and time.monotonic() >= unserved:
                unserved = float("inf")
                console.print(f"{qualified} {UNSERVED}", highlight=False, soft_wrap=True)
            status.update(line(Snapshot(job=job, now=datetime.now(UTC), rows=())))
    shown = f"dtj get {flags.name} -n {cluster.namespace} -o wide"
    raise WaitTimeout(f"{qualified} is not {wanted} after {flags.timeout}; `{shown}` shows its state")


def condition(text: str) -> str:
    """Returns the condition that --for names. Raises InputError.

    Any case is accepted, with or without kubectl's `condition=`.
    """
    name = text.removeprefix("condition=").removesuffix("=true")
    for known in (*names.CONDITIONS, DELETED):
        if known.lower() == name.lower():
            return known
    raise InputError(f"--for {text}: write one of {', '.join(names.CONDITIONS)}, {DELETED}")


def versions(cluster: Cluster, name: str, deadline: float) -> Iterator[Object | None]:
    """Yields the job now and after every change until the deadline, and None, last, once it is deleted.

    Raises JobNotFound if there was no such job at the start.
    """
    seen = False
    while (left := deadline - time.monotonic()) > 0:
        try:
            for job in cluster.versions(name, min(left, WATCH_SECONDS)):
                yield job
                if job is None:
                    return
                seen = True
        except JobNotFound:
            if not seen:
                raise
            yield None
            return


def condition_text(job: Object, kind: str) -> str:
    """Returns reason and message of a condition."""
    found = next(each for each in job["status"]["conditions"] if each["type"] == kind)
    return f"{found['reason']}: {found['message']}"
