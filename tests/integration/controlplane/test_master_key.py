"""The master key is replaced while a job runs: the job keeps its key, its pods and its progress."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtj_contract import names
from dtj_core.plan.agent_keys import agent_key
from dtj_core.plan.model import Settings
from hack.cluster.controlplane import ControlPlane
from tests.integration.controlplane.kubelet import Kubelet
from tests.integration.controlplane.nodes import place
from tests.integration.controlplane.support import MASTER_KEY, Agents, Objects, Operator, running, wait_until

NEW_KEY = b"fedcba9876543210fedcba9876543210"
NEEDING = "dtj_previous_key_jobs"


def replace_file(path: Path, data: bytes) -> None:
    """Replaces a file as the kubelet replaces one of a mounted Secret: at once."""
    new = path.with_name(path.name + ".new")
    new.write_bytes(data)
    os.replace(new, path)


def key_of(objects: Objects, name: str) -> str:
    return base64.b64decode(objects.get("secrets", f"{name}-dtj-agent")["data"]["key"]).decode()


def derived(master_key: bytes, job: Any) -> str:
    return agent_key(job["metadata"]["uid"], Settings(agent_image="", master_key=master_key))


def test_replaced_master_key_restarts_the_operator_and_no_job(
    plane: ControlPlane,
    start_operator: Callable[..., Operator],
    run_job: Callable[..., Any],
    submit: Callable[..., Any],
    objects: Objects,
    kubelet: Kubelet,
    agents: Agents,
    tmp_path: Path,
) -> None:
    key, previous = tmp_path / "key", tmp_path / "previous"
    key.write_bytes(MASTER_KEY)
    # The last of two flags holds.
    files = ("--master-key-file", str(key), "--previous-master-key-file", str(previous), "--resync-seconds", "1")
    first = start_operator(*files).ready()
    job = run_job()
    before = {pod["metadata"]["uid"] for pod in objects.list("pods")}
    assert key_of(objects, "j") == derived(MASTER_KEY, job)

    replace_file(previous, MASTER_KEY)
    replace_file(key, NEW_KEY)
    assert first.process.wait(120) == 0, "the kubelet starts it again, with the new key"
    # This program looks for a missing Secret sooner than in 10 s.
    second = start_operator(*files, program=(str(Path(__file__).parent / "impatient.py"),)).ready()
    agents.statuses[job["metadata"]["uid"]] = running(step=77, attempt=2)
    wait_until(
        "the job's agents are heard with the previous key",
        lambda: objects.get(names.PLURAL, "j")["status"].get("attempt") == 2,
    )
    wait_until("the metric counts the job", lambda: f"{NEEDING} 1.0" in second.get("/metrics")[1])
    assert key_of(objects, "j") == derived(MASTER_KEY, job), "the Secret is left as it is"

    kubelet.container_states["j-1"] = {"state": {"waiting": {"reason": "ContainerCreating"}}}
    plane.request("DELETE", objects.path("secrets", "j-dtj-agent"))
    plane.request("DELETE", objects.path("pods", "j-1"))
    wait_until("another pod", lambda: (p := objects.get("pods", "j-1")) and p["metadata"]["uid"] not in before)
    place(objects, "j-1", "w1")
    wait_until("the Secret is back for the pod that comes back", lambda: objects.get("secrets", "j-dtj-agent"))
    assert key_of(objects, "j") == derived(MASTER_KEY, job), "the other agents know no other key"
    assert len(before & {pod["metadata"]["uid"] for pod in objects.list("pods")}) == 1, "no pod but the deleted one"

    new = submit("k")
    wait_until("a new job has its Secret", lambda: objects.get("secrets", "k-dtj-agent"))
    assert key_of(objects, "k") == derived(NEW_KEY, new)
