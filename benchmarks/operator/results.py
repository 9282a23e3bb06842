"""The tables and the plot of README.md. Only `--render` writes figures into the README."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.ledger import Trial
from benchmarks.operator import plot
from benchmarks.report import Page

TITLES = {
    "creation": "Many jobs at once, each with its children; a restart with all of them there",
    "starting": "100 jobs until they run",
    "scale": "More jobs",
    "listening": "Jobs that run, whose agents take a step each second",
    "many": "Very many jobs that run, whose steps stand still",
    "silent": "New jobs beside silent agents",
    "large": "One job of many pods starts",
    "leaders": "Leaders that end at random under load",
}
NOTES = {
    "creation": (
        "Medians. `floor` is a client that creates the same objects without an operator."
        " `shipped`: the limits of requests that each project ships; `tuned`: limits that do not bind, and 8 workers of"
        " the Training Operator. kube-controller-manager has its own 20 requests a second, so it creates few pods."
        " JobSet and the Training Operator create other children than ours: see above."
    ),
    "starting": (
        "Writes of the operator about a job until its status shows that its pods run, from the audit log, without"
        " leases. Here kube-controller-manager is not limited. Six are the least with a NetworkPolicy: four children,"
        " and a status when they exist and when the pods run. The peers create no NetworkPolicy."
    ),
    "scale": (
        "From the first create until every job has its children; the memory has the pods, which are pending. `floor`:"
        " the client alone."
    ),
    "listening": (
        "The age is how old the progress in a status is before it is written again. Both worst ages are those of all"
        " jobs and trials. `floor` is a client alone, after the operator's end in each trial: it writes as many"
        " statuses a second of the same jobs"
        " with the same HTTP client, and follows the jobs by a watch; it has no agents, no other cache and no plan."
        " Writes and reads are those about jobs: for its lease and its claim a leader makes 0.7 writes and 0.4 reads"
        " a second, however many jobs there are."
    ),
    "many": "Jobs are created in waves of 500, each when the last one runs; then a minute of rest.",
    "silent": "The time from the create of one job until its Service, Secret and StatefulSet exist.",
    "large": (
        "The delay of the event loop has the resolution of its metric's buckets. Here the operator goes before the"
        " control plane: on two cores it would else be late because they run, by 100 to 250 ms."
    ),
    "leaders": "By the control plane's test: no object is lost or made twice, and each status ends as its job does.",
}
Judge = Callable[[float], bool]


def render(key: str, found: Mapping[str, Any]) -> str:
    """Returns one table as Markdown."""
    rows: dict[str, list[Trial]] = {}
    for trial in found["trials"]:
        rows.setdefault(trial["arm"], []).append(trial)
    body = RENDERERS[key](rows)
    return "\n".join([f"**{TITLES[key]}**", "", *body, "", f"{NOTES[key]} {found['circumstances']}", ""])


def _median(trials: Sequence[Trial], name: str) -> float | None:
    values = [trial[name] for trial in trials if name in trial]
    return statistics.median(values) if values else None


def _worst(trials: Sequence[Trial], name: str) -> float:
    return max(float(trial[name]) for trial in trials)


def _cell(trials: Sequence[Trial], name: str, digits: int = 1, scale: float = 1.0) -> str:
    value = _median(trials, name)
    return "" if value is None else f"{value * scale:,.{digits}f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    out = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return out + ["| " + " | ".join(row) + " |" for row in rows]


def _met(value: float | None, limit: float, text: str) -> str:
    return "" if value is None else f"≤ {text}: {'met' if value <= limit else 'missed'}"


def _creation(rows: Mapping[str, list[Trial]]) -> list[str]:
    head = [
        "operator", "trials", "children s", "beside the floor", "CPU ms a job", "RSS idle / peak MiB",
        "restarted: new job's children s",
    ]  # fmt: skip
    out, floor = [], _median(rows.get("floor", []), "seconds")
    for arm, trials in rows.items():
        seconds = _median(trials, "seconds")
        beside = f"{seconds / floor:.2f}x" if seconds and floor and arm != "floor" else ""
        memory = f"{_cell(trials, 'rss_idle', 0)} / {_cell(trials, 'rss_peak', 0)}" if "rss_idle" in trials[0] else ""
        cells = [arm, str(len(trials)), _cell(trials, "seconds"), beside, _cell(trials, "cpu_ms"), memory]
        out.append([*cells, _cell(trials, "restart_children")])
    lines = _table(head, out)
    if ours := rows.get("ours"):
        seconds = _median(ours, "seconds")
        targets = [
            _met(seconds, 15.0, "15 s"),
            _met(seconds / floor, 1.6, "1.6 x the floor") if seconds and floor else "",
            _met(_median(ours, "rss_idle"), 70.0, "70 MiB idle"),
            _met(_median(ours, "rss_peak"), 130.0, "130 MiB at the peak"),
            _met(_median(ours, "cpu_ms"), 15.0, "15 ms"),
            _met(_median(ours, "restart_children"), 3.0, "3 s after a restart"),
        ]
        lines += ["", f"Targets of `ours`: {'; '.join(filter(None, targets))}."]
    return lines


def _starting(rows: Mapping[str, list[Trial]]) -> list[str]:
    out = []
    for arm, trials in rows.items():
        kinds: dict[str, float] = {}
        for trial in trials:
            for kind, count in trial["running_writes_by_resource"].items():
                kinds[kind] = kinds.get(kind, 0.0) + count / len(trials)
        parts = ", ".join(f"{count:.1f} {kind}" for kind, count in sorted(kinds.items()) if count >= 0.05)
        writes = _median(trials, "running_writes")
        target = _met(writes, 5.0, "5") if arm == "ours" else ""
        out.append([arm, str(len(trials)), _cell(trials, "running_writes"), parts, target])
    return _table(["operator", "trials", "writes a job", "of which", "target"], out)


def _scale(rows: Mapping[str, list[Trial]]) -> list[str]:
    head = [
        "jobs", "trials", "children s", "ms a job", "floor ms a job", "beside the floor", "CPU ms a job",
        "RSS peak MiB", "KiB a job",
    ]  # fmt: skip
    out = []
    sizes = sorted(int(arm) for arm in rows if arm.isdecimal())
    for jobs in sizes:
        trials, floor = rows[f"{jobs}"], _median(rows.get(f"{jobs}, floor", []), "seconds")
        seconds, idle, peak = (_median(trials, name) or 0.0 for name in ("seconds", "rss_idle", "rss_peak"))
        beside = [f"{1000 * floor / jobs:.1f}", f"{seconds / floor:.2f}x"] if floor else ["", ""]
        cells = [f"{jobs:,}", str(len(trials)), f"{seconds:.1f}", f"{1000 * seconds / jobs:.1f}", *beside]
        growth = f"{(peak - idle) * 1024 / jobs:.0f}"
        out.append([*cells, _cell(trials, "cpu_ms"), f"{peak:.0f}", growth])
    return _table(head, out)


def _listening(rows: Mapping[str, list[Trial]]) -> list[str]:
    head = [
        "jobs", "trials", "CPU of a core", "floor", "beside the floor", "writes/s", "reads/s", "progress age s: median",
        "worst", "failure s: median", "worst", "RSS MiB", "targets",
    ]  # fmt: skip
    out = []
    for arm, trials in sorted(rows.items(), key=lambda row: int(row[0])):
        share = int(arm) / 1000
        targets = [
            _met(_median(trials, "cpu"), 0.1 * share, f"{10 * share:g} %"),
            _met(_median(trials, "writes_per_second"), 40 * share, f"{40 * share:g} writes"),
            _met(_median(trials, "reads_per_second"), 0, "0 reads"),
            _met(_worst(trials, "progress_age_worst"), 30, "30 s"),
            _met(_worst(trials, "failure_age_worst"), 1, "1 s"),
        ]
        floor = [trial for trial in trials if "floor_cpu" in trial]
        beside = [trial["cpu"] / trial["floor_cpu"] for trial in floor]
        cells = [f"{int(arm):,}", str(len(trials)), _cell(trials, "cpu", 1, 100) + " %"]
        cells += [_cell(floor, "floor_cpu", 1, 100) + " %", f"{statistics.median(beside):.2f}x"] if floor else ["", ""]
        cells.append(_cell(trials, "writes_per_second"))
        cells += [_cell(trials, name) for name in ("reads_per_second", "progress_age_median")]
        cells += [f"{_worst(trials, 'progress_age_worst'):.1f}", _cell(trials, "failure_age_median", 2)]
        cells += [f"{_worst(trials, 'failure_age_worst'):.2f}"]
        out.append([*cells, _cell(trials, "rss", 0), "; ".join(targets)])
    return _table(head, out)


def _many(rows: Mapping[str, list[Trial]]) -> list[str]:
    head = ["jobs", "all run s", "CPU of a core", "writes/s", "reads/s", "RSS idle / running / peak MiB", "target"]
    out = []
    for arm, trials in rows.items():
        memory = " / ".join(_cell(trials, name, 0) for name in ("rss_idle", "rss", "rss_peak"))
        cells = [f"{int(arm):,}", _cell(trials, "seconds", 0), _cell(trials, "cpu", 1, 100) + " %"]
        cells += [_cell(trials, name) for name in ("writes_per_second", "reads_per_second")]
        out.append([*cells, memory, _met(_median(trials, "rss_peak"), 1024, "1 GiB")])
    return _table(head, out)


def _silent(rows: Mapping[str, list[Trial]]) -> list[str]:
    out = []
    for arm, trials in rows.items():
        worst = max(trial["delay_worst"] for trial in trials)
        cells = [arm, str(len(trials)), _cell(trials, "delay_median", 2), f"{worst:.2f}"]
        out.append([*cells, _cell(trials, "cpu", 1, 100) + " %", _met(worst, 1.0, "1 s")])
    return _table(["silent jobs", "trials", "median s", "worst s", "CPU of a core", "target"], out)


def _large(rows: Mapping[str, list[Trial]]) -> list[str]:
    head = ["pods", "trials", "all ready s", "status writes", "event loop late by", "CPU s", "RSS peak MiB", "targets"]
    out = []
    for arm, trials in rows.items():
        late = max(trial["lag_worst_bucket"] for trial in trials)
        writes = max(trial["status_writes"] for trial in trials)
        targets = f"{_met(late, 0.05, '50 ms')}; {_met(writes, 20, '20 writes')}"
        cells = [f"{int(arm):,}", str(len(trials)), _cell(trials, "seconds"), str(writes), f"≤ {1000 * late:g} ms"]
        out.append([*cells, _cell(trials, "cpu"), _cell(trials, "rss_peak", 0), targets])
    return _table(head, out)


def _leaders(rows: Mapping[str, list[Trial]]) -> list[str]:
    out = []
    for arm, trials in rows.items():
        passed = sum(trial["passed"] for trial in trials)
        out.append([arm, str(len(trials)), str(passed), _cell(trials, "seconds", 0)])
    return _table(["ends", "trials", "nothing lost or doubled", "s"], out)


RENDERERS: Mapping[str, Callable[[Mapping[str, list[Trial]]], list[str]]] = {
    "creation": _creation,
    "starting": _starting,
    "scale": _scale,
    "listening": _listening,
    "many": _many,
    "silent": _silent,
    "large": _large,
    "leaders": _leaders,
}


class Report(Page):
    """README.md and results.json of this folder."""

    def rendered(self) -> str:
        """Returns the README with its tables."""
        return self.filled(TITLES, render)

    def update_readme(self) -> None:
        """Writes the tables into the README, and the plot into docs/figures."""
        self.readme.write_text(self.rendered())
        if plot.bars(self.load()):
            plot.draw(self.load())


REPORT = Report(Path(__file__).parent)
