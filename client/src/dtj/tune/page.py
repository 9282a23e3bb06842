"""The page of a sweep: one HTML file that needs nothing from elsewhere. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dtj import durations
from dtj.report.shapes import clean, html
from dtj.tune import charts
from dtj.tune.engine import State
from dtj.tune.planner import TrialState
from dtj.tune.render import job_name, text
from dtj.tune.study import Details

MOST_ROWS = 1000


def page(state: State, importance: Mapping[str, float]) -> str:
    """Returns the page."""
    sweep, metric = state.sweep, state.sweep.spec.objective.metric
    best = state.best
    body = [
        f"<h1>{clean(sweep.name)}</h1>",
        *_summary(state),
        "<h2>History</h2><p>Each dot is a trial: complete, pruned (grey: its last value), or failed (red). "
        "The line is the best value so far.</p>",
        charts.history(state.trials, metric, maximize=state.limits.maximize),
        "<h2>Importance</h2><p>The share of each parameter in the spread of the results of complete trials "
        "(PED-ANOVA).</p>",
        charts.importance(importance),
        "<h2>Intermediate values</h2>",
        charts.intermediate(state.trials, metric, best),
        "<h2>Parallel coordinates</h2><p>Each line is a trial; the thick one is the best.</p>",
        charts.parallel(state.trials, sweep.spec.parameters, metric, best),
        "<h2>Trials</h2>",
        *_table(state),
    ]
    return html(f"sweep {sweep.name}", body)


def _summary(state: State) -> Iterator[str]:
    counts = {one: state.count(one) for one in TrialState}
    shown = ", ".join(f"{count} {one.value}" for one, count in counts.items() if count)
    yield (
        f"<p>{len(state.trials)} of {state.limits.trials} trials: {clean(shown or 'none yet')}; "
        f"{state.limits.parallel} at once; {durations.format_estimate(state.seconds)} since the begin.</p>"
    )
    if (best := state.best) is None:
        yield "<p>No trial is complete yet.</p>"
        return
    sweep, objective = state.sweep, state.sweep.spec.objective
    yield (
        f'<div class="verdict"><h2>Best: {clean(objective.metric)} {best.trial.value:.6g}</h2>'
        f"<p>Trial {best.trial.number}, job <code>{clean(job_name(sweep.name, best.trial.number))}</code>:</p><ul>"
    )
    yield from (f"<li><code>{clean(name)}</code> {clean(text(value))}</li>" for name, value in best.params.items())
    yield "</ul></div>"


def _table(state: State) -> Iterator[str]:
    """Yields the trials, the best ones first, then those without a result by number."""
    parameters = list(state.sweep.spec.parameters)
    sign = -1 if state.limits.maximize else 1

    def order(one: Details) -> tuple[bool, float, int]:
        value = one.trial.value
        return value is None, sign * (value or 0.0), one.trial.number

    heads = ["trial", "state", state.sweep.spec.objective.metric, "step", *parameters, "why it failed"]
    yield "<table><thead><tr>" + "".join(f"<th>{clean(head)}</th>" for head in heads) + "</tr></thead><tbody>"
    for one in sorted(state.trials, key=order)[:MOST_ROWS]:
        value, step = charts.last_value(one), one.trial.last_step
        cells = [
            str(one.trial.number),
            one.trial.state.value,
            "-" if value is None else f"{value:.6g}",
            "-" if step is None else str(step),
            *(_cell(one.params.get(name)) for name in parameters),
            one.message,
        ]
        yield "<tr>" + "".join(f"<td>{clean(cell)}</td>" for cell in cells) + "</tr>"
    yield "</tbody></table>"
    if len(state.trials) > MOST_ROWS:
        yield f"<p>{len(state.trials) - MOST_ROWS} further trials are in the storage.</p>"


def _cell(value: bool | int | float | str | None) -> str:
    if value is None:
        return "-"
    return f"{value:.5g}" if isinstance(value, float) else text(value)
