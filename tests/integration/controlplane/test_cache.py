"""The operator's cache on a real API server: what it reads, what it costs, and gaps of its watches."""

from __future__ import annotations

import contextlib
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from dtj_contract import names
from hack.cluster.controlplane import ControlPlane
from tests.integration.controlplane.kubelet import Kubelet
from tests.integration.controlplane.support import Agents, Objects, Operator, change, outcome, wait_until

Start = Callable[..., Operator]
JOBS = names.PLURAL
HERE = Path(__file__).parent
KINDS = (JOBS, "statefulsets", "services", "pods")
LISTED = {("list", kind): 1 for kind in (*KINDS, "distributedtrainingruntimes")}


def metric(operator: Operator, name: str, **labels: str) -> float:
    """Returns the sum of the samples of this name and these labels."""
    families = text_string_to_metric_families(operator.get("/metrics")[1])
    samples = (sample for family in families for sample in family.samples if sample.name == name)
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def reads(operator: Operator) -> Counter[tuple[str, str]]:
    refs = [(call["verb"], call["objectRef"].get("resource", "")) for call in operator.calls()]
    return Counter(each for each in refs if each[0] in ("get", "list"))


@contextlib.contextmanager
def stopped(operator: Operator) -> Iterator[None]:
    """Stops the process, which then does not read its watches or notice their end."""
    operator.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        operator.process.send_signal(signal.SIGCONT)


def test_whole_life_of_a_job_costs_one_read_and_after_its_end_nothing(
    start_operator: Start, run_job: Callable[..., Any], objects: Objects, kubelet: Kubelet, agents: Agents
) -> None:
    operator = start_operator("--resync-seconds", "1").ready()
    assert reads(operator) == LISTED
    job = run_job()
    kubelet.container_states["j-0"] = outcome(job, "Succeeded", "AllWorkersSucceeded")
    wait_until("the job is complete", lambda: objects.condition("j", "Complete"))
    wait_until("its pods are gone", lambda: not objects.list("pods"))
    wait_until("the operator knows", lambda: metric(operator, "dtj_cache_objects", resource="pods") == 0)
    # Before its StatefulSet was created.
    assert reads(operator) == LISTED | {("get", JOBS): 1}

    def settled() -> bool:
        before = metric(operator, "dtj_reconcile_total")
        time.sleep(1)  # observes that nothing happens
        return metric(operator, "dtj_reconcile_total") == before

    wait_until("the job is not looked at any more", settled)
    before = len(operator.calls()), agents.asked, metric(operator, "dtj_reconcile_total")
    time.sleep(5)  # observes that nothing happens in several resyncs
    assert (len(operator.calls()), agents.asked, metric(operator, "dtj_reconcile_total")) == before


def test_many_events_of_the_pods_of_a_job_are_few_reconciles(
    start_operator: Start, run_job: Callable[..., Any], objects: Objects
) -> None:
    operator = start_operator().ready()
    run_job(replicas=2)
    seen = lambda: metric(operator, "dtj_watch_events_total", resource="pods")  # noqa: E731
    events, reconciles, began = seen(), metric(operator, "dtj_reconcile_total"), time.monotonic()
    for number in range(40):

        def turn(pod: Any, number: int = number) -> None:
            pod["status"]["message"] = f"turn {number}"

        for name in ("j-0", "j-1"):
            change(objects.plane, objects.path("pods", name), turn, "/status")
    wait_until("the events arrive", lambda: seen() >= events + 80)
    took = time.monotonic() - began
    # One in each window of a tenth of a second, and one poll of the agent in two seconds.
    assert metric(operator, "dtj_reconcile_total") - reconciles <= took * 10.5 + 5


def test_gap_of_the_watches_is_listed_again_and_leaves_no_ghosts(
    plane: ControlPlane, start_operator: Start, run_job: Callable[..., Any], objects: Objects
) -> None:
    """Another API server does not have the changes since the operator last looked: it answers 410."""
    operator = start_operator().ready()
    run_job("gone")
    run_job("stays")
    wait_until("all is cached", lambda: metric(operator, "dtj_cache_objects", resource="pods") == 4)
    with stopped(operator):
        plane.crash_apiserver()  # or else the changes would wait in its connections
        plane.start_apiserver()
        objects.plane.request("DELETE", objects.path(JOBS, "gone"))
        for plural, left in (("statefulsets", 1), ("services", 1), ("pods", 2)):
            wait_until(
                f"the {plural} are gone", lambda plural=plural, left=left: len(objects.list(plural)) == left, timeout=60
            )
        plane.crash_apiserver()
        plane.start_apiserver()
    for kind in KINDS:
        left = 2 if kind == "pods" else 1
        wait_until(
            f"the {kind} of the gone job are dropped",
            lambda kind=kind, left=left: metric(operator, "dtj_cache_objects", resource=kind) == left,
            timeout=60,
        )
    wait_until("the job is not counted", lambda: metric(operator, "dtj_jobs") == 1)
    assert all(metric(operator, "dtj_cache_lists_total", resource=kind) >= 2 for kind in KINDS)
    run_job("gone")
    assert len(objects.list("pods")) == 4
    assert operator.get("/healthz") == (200, "ok\n")


def test_silent_watches_are_replaced_and_miss_nothing(start_operator: Start, run_job: Callable[..., Any]) -> None:
    operator = start_operator(program=(str(HERE / "deaf.py"),)).ready()
    run_job()
    assert metric(operator, "dtj_watch_failures_total", resource=JOBS) == 1
    assert metric(operator, "dtj_cache_lists_total", resource=JOBS) == 1, "the next watch begins where the dead one did"


def test_foreign_service_of_the_jobs_name_is_reported_and_left_alone(
    plane: ControlPlane, start_operator: Start, submit: Callable[..., Any], objects: Objects
) -> None:
    """No watch of the operator shows it, because it lacks the operator's label."""
    operator = start_operator().ready()
    service = {"metadata": {"name": "j"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}}
    foreign = plane.request("POST", objects.path("services"), service)
    submit()

    def conflict() -> Any:
        conditions = (objects.get(JOBS, "j").get("status") or {}).get("conditions") or []
        return next((each for each in conditions if each["reason"] == "ChildConflict"), None)

    assert "Service j already exists" in wait_until("the conflict is reported", conflict)["message"]
    assert objects.get("services", "j")["spec"] == foreign["spec"]
    plane.request("DELETE", objects.path("services", "j"))
    wait_until("the job gets its pods", lambda: len(objects.list("pods")) == 2, timeout=60)
    assert operator.get("/healthz") == (200, "ok\n")
