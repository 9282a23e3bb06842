"""The dashboard on a real Prometheus, with the data of jobs on kind: each panel shows what the jobs did.

In `make test-long`. No Grafana takes part: the test replaces the dashboard's variables as Grafana does, evaluates each
query over the time of the run, and checks values and legends.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dtj_contract import names
from hack.images.recipes import ROOT
from tests.e2e.conftest import slowed
from tests.e2e.kit import Job, Kubectl
from tests.e2e.prometheus import Prometheus, targets_of
from tests.e2e.test_recovery import KILL_WORKER
from tests.lib.waiting import wait_until

DASHBOARD = json.loads((ROOT / "charts/dtj-operator/files/dashboard.json").read_text())
PANELS = {panel["title"]: panel for panel in DASHBOARD["panels"] if panel["type"] != "row"}
VARIABLES = {each["name"]: each for each in DASHBOARD["templating"]["list"] if each["type"] == "query"}

MAY_BE_EMPTY = {"Nodes avoided per day", "Slow ranks: own time, to the median rank's"}
"""Panels about what does not happen in this run."""
OF_THE_RUN: dict[str, dict[str, float]] = {
    "Jobs by phase": {"Running": 2},
    "Ended jobs per hour": {"Complete AllWorkersSucceeded": 1, "Failed EntrypointNotFound": 1},
    "Restarts per hour": {"InPlace": 1},
    "Restarts per hour by reason": {"WorkerFailed": 1},
    # Detection takes no time where the agent sees its own rank end.
    "Recovery by phase, 90th percentile": {"stop": 0.001, "rendezvous": 0.001, "load": 0.01},
    "Steps repeated after restarts, per hour": {"steps": 1},
    "Jobs whose agents are listened to": {"heard": 1},
    "Step": {"NAMESPACE/digits": 100},
    "Loss": {"NAMESPACE/digits": 0.01},
    "Samples per second": {"NAMESPACE/digits": 1},
    "Attempt": {"NAMESPACE/digits": 2},
    "Age of the newest checkpoint": {"NAMESPACE/digits": 1},
    "Reconciles per second": {"success": 0.001},
    "Requests to the API server": {"apply 200": 0.001},
    "Status writes": {"writes": 0.001},
}
"""Legends, and a value that each of them must reach."""

Panel = dict[str, list[tuple[float, float]]]
"""Time and value of the points of each legend."""


class Viewer:
    """Evaluates the dashboard as Grafana does, with one choice of its variables."""

    def __init__(self, prometheus: Prometheus, start: float, chosen: dict[str, str]) -> None:
        self.prometheus, self.start, self.chosen = prometheus, start, chosen

    def panel(self, title: str) -> Panel:
        """Returns what a panel shows of the run."""
        shown: Panel = {}
        for line in PANELS[title]["targets"]:
            query = re.sub(r"\$(\w+)", lambda found: self.chosen[found[1]], line["expr"])
            for series in self.prometheus.query_range(query, self.start, time.time()):
                legend = re.sub(r"{{(\w+)}}", lambda found: series["metric"][found[1]], line["legendFormat"])  # noqa: B023
                assert legend not in shown, f"{title}: two lines have the legend {legend}"
                points = [(when, float(value)) for when, value in series["values"]]
                # Grafana draws no line for a series of NaN.
                if kept := [point for point in points if math.isfinite(point[1])]:
                    shown[legend] = kept
        return shown


@pytest.fixture
def scraped(
    make_job: Callable[..., Job], kubectl: Kubectl, operator: Kubectl, images: dict[str, str]
) -> tuple[Prometheus, float]:
    """Runs a job whose rank is killed and one that fails, under Prometheus. Returns it, and when the run began."""
    job = make_job(
        entrypoint={"module": "dtj_trainer.examples.digits", "args": slowed(150)},
        checkpoint={"volume": {"claimName": "shared"}, "everySteps": 50},
        # The agents' pages stay, so that the end of the run is scraped.
        cleanPodPolicy="None",
    ).create()
    job.wait("Running", 120)
    targets = targets_of(operator, "app.kubernetes.io/name=dtj-operator", 8080)
    assert targets, "no pod of the operator"
    targets += targets_of(kubectl, f"{names.LABEL_JOB}=digits", names.AGENT_PORT)
    prometheus = Prometheus(kubectl, job.shared, images["operator"], targets)
    began = time.time()
    wait_until("all targets are scraped", lambda: not prometheus.broken_targets(), detail=prometheus.broken_targets)
    job.until_step(80)
    kubectl("exec", "digits-1", "-c", "trainer", "--", "python3", "-c", KILL_WORKER)
    make_job("broken", replicas=1, entrypoint={"script": "/no/such.py"}).create().wait("Failed", 120)
    job.wait("Complete", 240)
    # Rates need two scrapes after the last event.
    ended = 'sum(dtj_jobs_finished_total{result="Complete"})'
    wait_until("the end is scraped twice", lambda: _samples(prometheus, ended, began) >= 2, every=1)
    return prometheus, began


def _samples(prometheus: Prometheus, query: str, start: float) -> int:
    """Returns how many points of a query's first series have its last value, which is not its first."""
    [series] = prometheus.query_range(query, start, time.time())
    values = [value for _, value in series["values"]]
    return values.count(values[-1]) if values[-1] != values[0] else 0


@pytest.mark.timeout(900)
def test_dashboard_shows_a_run_with_a_killed_rank(scraped: tuple[Prometheus, float], kubectl: Kubectl) -> None:
    prometheus, began = scraped
    namespace = kubectl.namespace
    offered = {name: prometheus.label_values(_fixed(each["query"])) for name, each in VARIABLES.items()}
    assert offered == {"operator": ["dtj-system"], "namespace": [namespace], "job": ["digits"]}
    every = Viewer(prometheus, began, {name: each["allValue"] for name, each in VARIABLES.items()})
    shown = {title: every.panel(title) for title in PANELS}
    _keep(shown)
    problems = [f"{title} is empty" for title, panel in shown.items() if not panel and title not in MAY_BE_EMPTY]
    for title, legends in OF_THE_RUN.items():
        for legend, least in legends.items():
            values = [value for _, value in shown[title].get(legend.replace("NAMESPACE", namespace), [])]
            if max(values, default=-1.0) < least:
                problems.append(f"{title}: {legend} does not reach {least}: {values[-3:]} of {list(shown[title])}")
    assert not problems, "\n".join(problems)
    # A choice of each variable shows the same lines as all of them, because there is one of each. Later ones may come.
    one = Viewer(prometheus, began, {name: values[0] for name, values in offered.items()})
    assert {title: set(panel) - set(one.panel(title)) for title, panel in shown.items()} == {t: set() for t in PANELS}
    elsewhere = Viewer(prometheus, began, one.chosen | {"namespace": "elsewhere"})
    assert not elsewhere.panel("Step"), "the variable filters"


def _fixed(query: str) -> str:
    return query.replace("$namespace", ".*")


def _keep(shown: dict[str, Panel]) -> None:
    """Writes the values for a person who wants to look at them, if the environment names a file."""
    if path := os.environ.get("DTJ_DASHBOARD_DATA"):
        Path(path).write_text(json.dumps(shown, indent=1))
