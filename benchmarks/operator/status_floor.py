"""A client that alone does what no operator can avoid while jobs run: it writes statuses, and follows the jobs.

    python -m benchmarks.operator.status_floor KUBECONFIG WRITES_PER_SECOND

It applies the statuses that it finds, each with a new time and step, one job after the other, with the operator's own
HTTP client. Its watch shows it each of its writes, as that of an operator with a cache of the jobs does.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.operator.helper import READY, Helper
from benchmarks.operator.planes import NAMESPACE
from dtj_contract import names
from dtj_operator import light_imports

WATCH_SECONDS = 3600.0


async def main(kubeconfig: str, rate: float) -> None:
    """Writes until the process is killed."""
    light_imports.register()
    from dtj_operator.kube.client import Client
    from dtj_operator.kube.login import Login
    from dtj_operator.kube.resources import JOB

    login = Login(kubeconfig)
    await login.load()
    client = Client(login, lambda verb, resource, code, seconds: None)
    page = [(job, version) async for jobs, version in client.pages(JOB, NAMESPACE) for job in jobs]
    jobs = {job["metadata"]["name"]: job for job, _ in page if job.get("status", {}).get("progress")}

    async def follow() -> None:
        watch = client.watch(JOB, NAMESPACE, None, page[-1][1], seconds=WATCH_SECONDS, quiet_seconds=WATCH_SECONDS)
        async for events in watch:
            for event in events:
                jobs[event["object"]["metadata"]["name"]] = event["object"]

    async def write(name: str) -> None:
        metadata, status = jobs[name]["metadata"], jobs[name]["status"]
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        progress = status["progress"] | {"time": now, "step": status["progress"].get("step", 0) + 1}
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion")},
            "status": status | {"progress": progress},
        }
        await client.apply(JOB, NAMESPACE, body, subresource="status")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(follow())
        print(READY, flush=True)
        loop = asyncio.get_running_loop()
        due = loop.time()
        for name in itertools.cycle(list(jobs)):
            tasks.create_task(write(name))
            due += 1 / rate
            await asyncio.sleep(due - loop.time())


class StatusFloor(Helper):
    """The process of this client. `rate`: writes a second."""

    def __init__(self, kubeconfig: Path, rate: float) -> None:
        super().__init__("benchmarks.operator.status_floor", str(kubeconfig), str(rate))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
