"""The tables and the plot of README.md. Only `--render` writes figures into the README."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.recovery.arms import ARMS, OURS, SPARED
from benchmarks.recovery.trials import LIMIT_SECONDS
from benchmarks.report import Page

FIGURE = Path(__file__).resolve().parents[2] / "docs/figures/recovery-benchmark.png"
Trial = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """The presentation of one experiment."""

    title: str
    note: str
    value: str = "seconds"
    """Key of the trial's figure."""
    unit: str = "s"
    target: float | None = None
    worst: float | None = None
    """Targets of our median and of our 95th percentile."""
    relative: str = ""
    """The arm that our target is a multiple of."""


TABLES = {
    "kill": Experiment(
        title="SIGKILL of one worker to the next completed step of the group",
        note="2 pods of 2 ranks, a random rank at a random moment. NVRx continues with 3 ranks: it starts no process.",
        target=0.25,
        worst=0.6,
    ),
    "start": Experiment(
        title="Command to the first completed step, 4 ranks in one pod",
        note="`dtj run` includes the command itself, which a cluster does not start.",
        target=0.5,
        relative="torchrun",
    ),
    "agent": Experiment(
        title="An agent and its workers are lost: return of the agent to the next completed step of the group",
        note="2 pods of 2 ranks, a random pod, 0 too. torchrun's agents return at once, as often as they end.",
        target=1.0,
    ),
    "spare": Experiment(
        title="An agent and its workers are lost, one spare: SIGKILL to the next completed step of the group",
        note="2 pods of 2 ranks and one spare, a random pod of the two, 0 too.",
        target=1.0,
    ),
    "stop": Experiment(
        title="SIGSTOP of one worker to the next completed step of the group",
        note="2 pods of 2 ranks, a random rank. torchrun and gloo notice nothing before a timeout of 30 minutes.",
        target=2.1,
    ),
    "goodput": Experiment(
        title="Goodput with a kill each minute",
        note="Share of the time that went into steps that count: a step that is done again counts once, one of 3 ranks"
        " as three quarters; detection, stop, start and load count nothing.",
        value="goodput",
        unit="share",
        target=0.98,
    ),
}


def by_arm(trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    """Returns the trials of each arm, in the order of the arms."""
    return {arm: found for arm in ARMS if (found := [trial for trial in trials if trial["arm"] == arm])}


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def render(experiment: Experiment, circumstances: str, trials: Sequence[Trial]) -> str:
    """Returns the table of one experiment as Markdown.

    Median, p95 and worst are over all trials. A trial without a step counts as the limit.
    """
    recovered = "no hang" if experiment.value == "goodput" else "recovered"
    out = [f"**{experiment.title}**", ""]
    out.append(f"| arm | {recovered} | median {experiment.unit} | p95 {experiment.unit} | worst {experiment.unit} |"
               " target |")  # fmt: skip
    out.append("|---|---:|---:|---:|---:|---|")
    figures = {arm: [_figure(experiment, trial) for trial in found] for arm, found in by_arm(trials).items()}
    for arm, found in by_arm(trials).items():
        values, well = figures[arm], sum(trial["seconds"] is not None for trial in found)
        bad = min(values) if experiment.value == "goodput" else max(values)
        tail = percentile(values, 0.05 if experiment.value == "goodput" else 0.95)
        cells = [arm, f"{well}/{len(found)}", *(_cell(value) for value in (statistics.median(values), tail, bad))]
        cells.append(_verdict(experiment, figures, well == len(found)) if arm in (OURS, SPARED) else "")
        out.append("| " + " | ".join(cells) + " |")
    notes = (experiment.note, _named(trials), _floor(trials), _survivors(trials), _steps(trials), circumstances)
    extra = " ".join(note for note in notes if note)
    return "\n".join([*out, "", extra, ""])


def _figure(experiment: Experiment, trial: Trial) -> float:
    value = trial[experiment.value]
    return LIMIT_SECONDS if value is None else float(value)


def _cell(value: float) -> str:
    return f"≥ {LIMIT_SECONDS:g}" if value >= LIMIT_SECONDS else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def _named(trials: Sequence[Trial]) -> str:
    found = [trial["named"] for trial in trials if "named" in trial]
    return f"The status names the stopped rank in {sum(found)} of {len(found)} trials." if found else ""


def _floor(trials: Sequence[Trial]) -> str:
    found = [trial["floor"] for trial in trials if "floor" in trial]
    if not found:
        return ""
    return f"A fresh process imports torch and torch._dynamo in {_cell(statistics.median(found))} s here (median)."


def _survivors(trials: Sequence[Trial]) -> str:
    found = [trial["survivors"] for trial in trials if "survivors" in trial]
    if not found:
        return ""
    median = _cell(statistics.median(found))
    return f"torchft's time is that until all 4 ranks train again; its survivors train after {median} s (median)."


def _steps(trials: Sequence[Trial]) -> str:
    found = {arm: own[-1] for arm, own in by_arm(trials).items() if "steps" in own[-1]}
    texts = [
        f"{arm} {own['steps']:,} of {1000 * own['step']:.1f} ms, {own['kills']} kills" for arm, own in found.items()
    ]
    return f"Steps: {'; '.join(texts)}." if texts else ""


def _verdict(experiment: Experiment, figures: Mapping[str, Sequence[float]], all_well: bool) -> str:
    if experiment.target is None:
        return ""
    ours = next(figures[arm] for arm in (OURS, SPARED) if arm in figures)
    median = statistics.median(ours)
    if experiment.value == "goodput":
        return f"≥ {experiment.target:g}: {_met(median >= experiment.target)}"
    if experiment.relative:
        if experiment.relative not in figures:
            return "not measured yet"
        share = median / statistics.median(figures[experiment.relative])
        return f"≤ {experiment.target:g}x {experiment.relative}: {share:.2f}x, {_met(share <= experiment.target)}"
    met, text = median <= experiment.target, f"median ≤ {experiment.target:g}"
    if experiment.worst is not None:
        met, text = met and percentile(ours, 0.95) <= experiment.worst, f"{text}, p95 ≤ {experiment.worst:g}"
    return f"all recover, {text}: {_met(met and all_well)}"


def _met(met: bool) -> str:
    return "met" if met else "missed"


class Report(Page):
    """README.md and results.json of this folder: every trial of every experiment."""

    def rendered(self) -> str:
        """Returns the README with a table for each experiment."""
        titles = {key: experiment.title for key, experiment in TABLES.items()}
        return self.filled(titles, lambda key, found: render(TABLES[key], found["circumstances"], found["trials"]))

    def update_readme(self) -> None:
        """Writes the tables into the README, and the plot into docs/figures."""
        self.readme.write_text(self.rendered())
        if found := self.load().get("kill"):
            draw(found["trials"])


def draw(trials: Sequence[Trial], path: Path = FIGURE) -> None:
    """Draws every trial of the first experiment as a dot, per arm; a hang is a cross at the limit."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = by_arm(trials)
    figure, axes = pyplot.subplots(figsize=(9, 0.7 * len(groups) + 1.4), dpi=100)
    for row, (_, found) in enumerate(groups.items()):
        values = [trial["seconds"] for trial in found]
        spread = [row + 0.3 * ((at * 0.618) % 1 - 0.5) for at in range(len(values))]
        points = [(value, at) for value, at in zip(values, spread, strict=True) if value is not None]
        hangs = [at for value, at in zip(values, spread, strict=True) if value is None]
        axes.scatter([x for x, _ in points], [y for _, y in points], s=22, alpha=0.7)
        axes.scatter([LIMIT_SECONDS] * len(hangs), hangs, marker="x", color="crimson")
    names = [f"{arm}\n{sum(t['seconds'] is None for t in found)} of {len(found)} hung" for arm, found in groups.items()]
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="seconds from SIGKILL of one worker to the next step of the group")
    axes.set_xticks([0.1, 0.25, 0.5, 1, 2, 5, 10, 30, LIMIT_SECONDS])
    axes.get_xaxis().set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.grid(axis="x", alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)


REPORT = Report(Path(__file__).parent)
