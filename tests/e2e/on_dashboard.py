"""The dashboard on a real Prometheus, with the data of jobs on kind: each panel shows what the jobs did.

In `make test-long`. The test replaces the dashboard's variables as Grafana does, evaluates each query over the time of
the run, and checks values and legends. Then Grafana's panel components draw the same in a browser, and the lines on the
canvas are compared with the values. Grafana's server takes no part.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dtj_contract import names
from hack.images.recipes import ROOT
from tests.e2e.browser import build_page, look
from tests.e2e.conftest import slowed
from tests.e2e.kit import Job, Kubectl
from tests.e2e.prometheus import SCRAPE_SECONDS, STEP_SECONDS, Prometheus, targets_of
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

ENDINGS = {
    "s": (" µs", " ms", " s", " min", " mins"),
    "bytes": (" B", " KiB", " MiB", " GiB"),
    "ops": (" ops/s", " mops/s"),
    "reqps": (" req/s", " mreq/s"),
}
"""Endings of an axis' labels, for each unit of Grafana that is printed."""

Panel = dict[str, list[tuple[float, float]]]
"""Time and value of the points of each legend."""


class Viewer:
    """Evaluates the dashboard as Grafana does, with one choice of its variables."""

    def __init__(self, prometheus: Prometheus, start: float, end: float, chosen: dict[str, str]) -> None:
        self.prometheus, self.start, self.end, self.chosen = prometheus, start, end, chosen

    def panel(self, title: str) -> Panel:
        """Returns what a panel shows of the run."""
        shown: Panel = {}
        for line in PANELS[title]["targets"]:
            query = re.sub(r"\$(\w+)", lambda found: self.chosen[found[1]], line["expr"])
            for series in self.prometheus.query_range(query, self.start, self.end):
                legend = re.sub(r"{{(\w+)}}", lambda found: series["metric"][found[1]], line["legendFormat"])  # noqa: B023
                assert legend not in shown, f"{title}: two lines have the legend {legend}"
                points = [(when, float(value)) for when, value in series["values"]]
                # Grafana draws no line for a series of NaN.
                if kept := [point for point in points if math.isfinite(point[1])]:
                    shown[legend] = kept
        return shown


@pytest.fixture(scope="session")
def page() -> Path:
    return build_page()


@pytest.fixture
def scraped(
    page: Path, make_job: Callable[..., Job], kubectl: Kubectl, operator: Kubectl, images: dict[str, str]
) -> tuple[Prometheus, float]:
    """Runs a job whose rank is killed and one that fails, under Prometheus. Returns it, and when the run began."""
    job = make_job(
        # Without memory snapshots, which can be as new as the last step: steps are repeated.
        entrypoint={"module": "dtj_trainer.examples.digits", "args": [*slowed(150), "--snapshot-every", "0"]},
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
    job.until_step(55)
    kubectl("exec", "digits-1", "-c", "trainer", "--", "python3", "-c", KILL_WORKER)
    make_job("broken", replicas=1, entrypoint={"script": "/no/such.py"}).create().wait("Failed", 120)
    [recovery] = job.wait("Complete", 240)["status"]["recoveries"]
    assert recovery["lostSteps"] >= 1, recovery
    # The last point that the test looks at is up to SCRAPE_SECONDS and a step older than the end.
    ended = 'sum(dtj_jobs_finished_total{result="Complete"})'
    wait_until("the end in three points", lambda: _samples(prometheus, ended, began) >= 3, every=1)
    return prometheus, began


def _samples(prometheus: Prometheus, query: str, start: float) -> int:
    """Returns how many points of a query's first series have its last value, which is not its first."""
    [series] = prometheus.query_range(query, start, time.time())
    values = [value for _, value in series["values"]]
    return values.count(values[-1]) if values[-1] != values[0] else 0


@pytest.mark.timeout(900)
def test_dashboard_shows_a_run_with_a_killed_rank(
    page: Path, scraped: tuple[Prometheus, float], kubectl: Kubectl
) -> None:
    prometheus, began = scraped
    # Grafana asks for multiples of the step. A scrape that is under way may still add samples with its start's time.
    began, ended = (moment // STEP_SECONDS * STEP_SECONDS for moment in (began, time.time() - SCRAPE_SECONDS))
    namespace = kubectl.namespace
    offered = {name: prometheus.label_values(_fixed(each["query"])) for name, each in VARIABLES.items()}
    assert offered == {"operator": ["dtj-system"], "namespace": [namespace], "job": ["digits"]}
    every = Viewer(prometheus, began, ended, {name: each["allValue"] for name, each in VARIABLES.items()})
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
    one = Viewer(prometheus, began, ended, {name: values[0] for name, values in offered.items()})
    assert {title: set(panel) - set(one.panel(title)) for title, panel in shown.items()} == {t: set() for t in PANELS}
    elsewhere = Viewer(prometheus, began, ended, one.chosen | {"namespace": "elsewhere"})
    assert not elsewhere.panel("Step"), "the variable filters"
    picture = Path(os.environ.get("DTJ_DASHBOARD_PICTURE", ROOT / "build/dashboard.png"))
    drawn = look(page, prometheus, began, ended, picture)
    assert drawn.keys() == PANELS.keys()
    problems = [f"{title}: {problem}" for title in PANELS for problem in _departures(drawn[title], shown[title])]
    problems += [f"{title}: {ticks}" for title in PANELS if (ticks := _ticks_without_unit(title, drawn[title]))]
    assert not problems, "\n".join(problems)


def _departures(drawn: dict[str, Any], shown: Panel) -> list[str]:
    """Returns in what a panel of the browser differs from what Prometheus answered, or is badly legible."""
    lines = {name: [tuple(point) for point in points] for name, points in drawn["lines"].items()}
    problems = []
    if drawn["empty"] != (None if shown else "No data"):
        problems.append(f"shows {drawn['empty']}")
    if {name: points for name, points in lines.items() if points} != shown:
        problems.append(f"its lines {lines} are not the values {shown}")
    if sorted(drawn["legend"]) != sorted(lines):
        problems.append(f"its legend {drawn['legend']} does not name the lines {list(lines)}")
    if drawn["unpainted"]:
        problems.append(f"points without colour on the canvas: {drawn['unpainted']}")
    if drawn["cut"]:
        problems.append(f"texts that do not fit: {drawn['cut']}")
    if len(set(drawn["ticks"])) != len(drawn["ticks"]):
        problems.append(f"labels of its axis repeat: {drawn['ticks']}")
    return problems


def _ticks_without_unit(title: str, drawn: dict[str, Any]) -> list[str]:
    endings = ENDINGS.get(PANELS[title]["fieldConfig"]["defaults"]["unit"], ("",))
    return [tick for tick in drawn["ticks"] if not tick.endswith(endings)]


def _fixed(query: str) -> str:
    return query.replace("$namespace", ".*")


def _keep(shown: dict[str, Panel]) -> None:
    """Writes the values for a person who wants to look at them, if the environment names a file."""
    if path := os.environ.get("DTJ_DASHBOARD_DATA"):
        Path(path).write_text(json.dumps(shown, indent=1))
