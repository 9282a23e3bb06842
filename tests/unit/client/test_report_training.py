"""The training's part of `dtj report`: the mean step, its figures, and two runs beside each other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from dtj.main import main
from dtj.report.breakdown import Section as Part
from dtj.report.breakdown import breakdown, windows
from dtj.report.compare import comparison
from dtj.report.content import Run, content
from dtj.report.content import run as run_of
from dtj.report.draw import section_svg
from dtj.report.figure import Bars, Chart, Columns, Heat, Section
from dtj.report.heat import MOST_ROWS, rank_rows
from dtj.report.page import page
from dtj.report.sections import MOST_COLUMNS, grouped, sections
from dtj.report.svg_file import svg_file
from dtj.report.traces import TraceOverlap
from dtj_contract import names
from dtj_core.plan.times import rfc3339
from tests.unit.client.reports import BEGIN, facts, record, samples, steady, timed

FULL = {
    **timed(ranks=4, data=0.1, compute=[0.4, 0.4, 0.8, 0.4], exposed=[0.4, 0.4, 0.0, 0.4], checkpoint=0.05,
            communication=0.5),
    "samples_per_second": 64.0, "tokens_per_second": 8192.0, "mfu": 0.4, "memory_bytes": 3 * 2**30,
    "memory_share": 0.5,
}  # fmt: skip
TRACE = TraceOverlap(rank=0, first=10, last=15, span=5.0, computation=3.0, communication=2.0, overlapped=1.0)


def full(**status: Any) -> Run:
    """Returns a run of four ranks whose records have everything, and whose rank 2 is slow."""
    return run_of(facts(steady(20, **FULL), replicas=4, **status), [TRACE])


def named(shown: tuple[Section, ...], heading: str) -> Section:
    return next(section for section in shown if section.heading == heading)


def test_mean_step_weighs_each_record_by_its_steps() -> None:
    steps = [(10, 9.0), (20, 1.0), (50, 3.0)]
    found = breakdown(samples(*(record(step, **timed(seconds, compute=seconds / 2)) for step, seconds in steps)))
    assert found is not None
    assert (found.steps, found.step) == (40, (10 * 1.0 + 30 * 3.0) / 40)
    assert found.sections == {Part.COMPUTE: 1.25, Part.OTHER: 1.25}


def test_rate_is_a_mean_over_the_time_and_not_over_the_records() -> None:
    """A run with 10 s at 100 samples/s and 40 s at 25 samples/s has done 2000 samples in 50 s."""
    given = samples(
        record(10, **timed()),
        record(20, **timed(1.0), samples_per_second=100.0),
        record(30, **timed(4.0), samples_per_second=25.0),
    )
    found = breakdown(given)
    assert found is not None
    assert found.rates == {"samples_per_second": 40.0}


def test_few_steps_make_no_mean() -> None:
    assert breakdown(samples(record(1, **timed()), record(4, **timed()))) is None
    assert breakdown([]) is None


def test_ranks_are_those_of_the_newest_group() -> None:
    given = samples(
        record(10, 1, **timed(ranks=4, compute=1.0)), record(20, 1, **timed(ranks=4, compute=1.0)),
        record(30, 2, **timed(ranks=2, compute=0.5)), record(40, 2, **timed(ranks=2, compute=[0.5, 0.7])),
    )  # fmt: skip
    found = breakdown(given)
    assert found is not None
    assert (found.ranks, found.by_rank[Part.COMPUTE]) == (2, (0.5, 0.7))


def test_metrics_that_are_no_numbers_are_left_out() -> None:
    (found,) = samples(
        record(9, step_seconds="1", mfu=-1, compute_seconds=1e400, data_seconds=0.5, other=3.0,
               per_rank={"data_seconds": [0.1, "x"], "compute_seconds": [], "step_seconds": 4, "memory_bytes": [1, 2]})
    )  # fmt: skip
    assert dict(found.numbers) == {"data_seconds": 0.5}
    assert {name: list(values) for name, values in found.by_rank.items()} == {"memory_bytes": [1.0, 2.0]}


def test_run_without_numbers_has_no_section() -> None:
    """Draws the timeline alone, as for a script that reports a loss."""
    shown = content(run_of(facts(steady(4))))
    assert shown.sections == ()
    assert "No logged steps have the seconds" in page(shown)


@pytest.mark.parametrize(
    ("values", "headings"),
    [
        ({"samples_per_second": 9.0}, ["Throughput"]),
        (timed(data=0.1), ["Step breakdown"]),
        (timed(data=0.1, checkpoint=0.1), ["Step breakdown", "Saves"]),
        (timed(ranks=2, data=0.1, compute=0.1), ["Step breakdown", "Ranks"]),
        (timed(exposed=0.1, communication=0.2), ["Step breakdown", "Overlap"]),
        ({"memory_bytes": 2.0**30}, ["Memory"]),
    ],
)
def test_section_needs_its_numbers(values: dict[str, Any], headings: list[str]) -> None:
    found = facts(steady(**values))
    assert [section.heading for section in sections(found, breakdown(found.samples))] == headings


def test_sections_show_the_numbers_of_a_full_run() -> None:
    found = content(full()).sections
    texts = {section.heading: " ".join(section.texts) for section in found}
    assert "8,192 tokens/s, 64 samples/s, MFU 40.0 %" in texts["Throughput"]
    assert "100 ms (10.0 %) waiting for data, 500 ms (50.0 %) computing" in texts["Step breakdown"]
    assert "40.0 % of the communication is hidden" in texts["Overlap"]
    assert "By 1 trace of 5 steps from step 10 on, 50.0 % of the communication is hidden." in texts["Overlap"]
    assert "9.50 s in all, 5.0 % of its steps. The job saves every 50 steps." in texts["Saves"]
    assert "3 GiB" in texts["Memory"]
    assert "50.0 % of its memory" in texts["Memory"]


def test_heat_map_marks_the_slow_rank_at_all_times() -> None:
    over_time, mean = named(content(full()).sections, "Ranks").figures
    assert isinstance(over_time, Heat)
    assert isinstance(mean, Heat)
    heats = {label: {round(cell.heat, 2) for cell in cells} for label, cells in over_time.rows}
    assert heats == {"rank 0": {0.0}, "rank 1": {0.0}, "rank 2": {0.8}, "rank 3": {0.0}}
    assert dict(mean.rows)["rank 2"][1].text == "800 ms"


def test_slow_rank_of_a_large_group_is_visible_in_its_row() -> None:
    ranks = 1000
    slow = timed(ranks=ranks, data=0.0, compute=[0.9 if rank == 77 else 0.3 for rank in range(ranks)])
    over_time, _ = named(content(run_of(facts(steady(**slow), replicas=ranks))).sections, "Ranks").figures
    assert isinstance(over_time, Heat)
    assert len(over_time.rows) <= MOST_ROWS
    (hot,) = [label for label, cells in over_time.rows if cells[0].heat == 1.0]
    first, last = map(int, hot.removeprefix("ranks ").split("-"))
    assert first <= 77 <= last


@pytest.mark.parametrize("ranks", [1, 2, 48, 49, 1024])
def test_rows_of_ranks_hold_each_rank_once(ranks: int) -> None:
    rows = rank_rows(ranks)
    assert len(rows) <= MOST_ROWS
    assert [rank for first, last in rows for rank in range(first, last + 1)] == list(range(ranks))


def test_columns_end_at_a_restart_and_are_bounded_in_number() -> None:
    given = samples(
        *(record(step, 1, **timed(compute=0.5)) for step in range(1, 3000)),
        *(record(step, 2, 3000.0 + step, **timed(compute=0.5)) for step in range(2000, 4000)),
    )
    groups = grouped(windows(given), MOST_COLUMNS)
    assert len(groups) <= MOST_COLUMNS + 1
    assert all(len({window.sample.attempt for window in group}) == 1 for group in groups)
    assert sum(window.steps for group in groups for window in group) == 2998 + 1999


def test_curve_is_broken_at_a_restart_and_begins_with_the_second_record() -> None:
    """The first record after a restart may be the mean of a single step."""
    rates = [(10, 1, 5.0), (20, 1, 6.0), (30, 1, 6.0), (31, 2, 900.0), (41, 2, 6.5), (51, 2, 6.5)]
    given = samples(*(record(step, attempt, samples_per_second=rate) for step, attempt, rate in rates))
    (chart,) = named(sections(facts(given), None), "Throughput").figures
    assert isinstance(chart, Chart)
    assert chart.curves[0].pieces == (((20.0, 6.0), (30.0, 6.0)), ((41.0, 6.5), (51.0, 6.5)))


def compared() -> tuple[Section, dict[str, tuple[str, ...]]]:
    """Returns the comparison of a full run with a shorter and faster one, and its table."""
    a, b = full(restarts={"total": 0}, goodput=0.9), run_of(facts(steady(5, **timed(0.5, compute=0.5)), goodput=0.95))
    section = comparison(a.facts, a.mean, a.verdict, b.facts, b.mean, b.verdict)
    return section, {row[0]: tuple(row[1:]) for row in section.table}


def test_two_runs_are_compared_by_step_and_by_number() -> None:
    section, rows = compared()
    losses, bars = section.figures
    assert isinstance(losses, Chart)
    assert isinstance(bars, Bars)
    assert [one.pieces[0][-1][0] for one in losses.curves] == [200, 50]
    assert not losses.span.is_time
    assert "one slow rank" in section.texts[0]
    assert "compute-bound" in section.texts[0]
    assert rows["loss at step 50"] == ("0.02", "0.02", "=")
    assert rows["step"] == ("1.00 s", "500 ms", "-50.0 %")
    assert rows["goodput"] == ("90.0 %", "95.0 %", "+5.0 points")
    assert rows["tokens/s"] == ("8,192", "-", "")
    assert "images/s" not in rows


def test_loss_that_counts_is_that_of_the_last_attempt() -> None:
    a = run_of(facts(samples(record(10, 1, 10.0), record(20, 1, 20.0), {**record(20, 2, 40.0), "loss": 7.0})))
    b = run_of(facts(samples(record(20))))
    section = comparison(a.facts, a.mean, a.verdict, b.facts, b.mean, b.verdict)
    assert [row for row in section.table if row[0] == "loss at step 20"] == [
        ("loss at step 20", "7", "0.05", "-99.3 %")
    ]


def test_every_figure_is_an_svg_that_stays_in_its_frame() -> None:
    for section in content(full(), full()).sections:
        root = ElementTree.fromstring(section_svg(section))
        width, height = (float(part) for part in root.attrib["viewBox"].split()[2:])
        for shape in root.iter("{http://www.w3.org/2000/svg}rect"):
            right = float(shape.attrib.get("x", "0")) + float(shape.attrib["width"])
            bottom = float(shape.attrib.get("y", "0")) + float(shape.attrib["height"])
            assert right <= width + 0.01
            assert bottom <= height + 0.01
        for line in root.iter("{http://www.w3.org/2000/svg}polyline"):
            points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
            assert all(0 <= x <= width and 0 <= y <= height for x, y in points)


def test_ids_of_a_page_are_unique_and_the_page_is_xml() -> None:
    root = ElementTree.fromstring(page(content(full(), full())).partition("\n")[2])
    ids = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids)) > 10


def test_svg_holds_all_sections_below_the_timeline() -> None:
    text = svg_file(content(full()))
    ElementTree.fromstring(text)
    for heading in ("Throughput", "Step breakdown", "Ranks", "Overlap", "Saves", "Memory", "one slow rank"):
        assert f">{heading}" in text


@pytest.mark.parametrize("values", [
    timed(0.0, compute=0.0), timed(1e-9, compute=1e-9), timed(1e9, compute=1.0, data=2e9),
    {**timed(ranks=2, data=0.0, compute=0.0, exposed=0.0, communication=0.0), "memory_bytes": 0},
    {"samples_per_second": 0.0, "mfu": 0.0}, {"gpu_memory_bytes": 1e300},
])  # fmt: skip
def test_extreme_numbers_make_a_page_and_an_svg(values: dict[str, Any]) -> None:
    shown = content(run_of(facts(steady(**values), replicas=2)))
    ElementTree.fromstring(page(shown).partition("\n")[2])
    ElementTree.fromstring(svg_file(shown))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Returns a function that writes a local run of this name, and returns its folder."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, **values: Any) -> str:
        volume = tmp_path / name / "volume"
        (volume / "traces").mkdir(parents=True)
        lines = [record(10 * at, **values) for at in range(1, 9)]
        (volume / names.METRICS_FILE).write_text("\n".join(map(json.dumps, lines)))
        status = {"startTime": rfc3339(BEGIN), "checkpoint": {"path": str(volume / "step-00000010")}}
        job = {"metadata": {"name": name}, "spec": {"replicas": 4}, "status": status}
        (tmp_path / name / "status.json").write_text(json.dumps(job))
        return name

    return write


def test_command_prints_the_verdict_below_the_file(run: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", run("a", **timed(data=0.4, compute=0.6))]) == 0
    path, verdict, *advice = capsys.readouterr().out.splitlines()
    assert path == "a-report.html"
    assert verdict == "data-bound: 40.0 % of a step waits for data (400 ms of 1.00 s)"
    assert all(line.startswith("  try ") for line in advice)
    assert "Data-bound" in Path(path).read_text()


@pytest.mark.parametrize("suffix", ["html", "svg", "png"])
def test_command_compares_two_runs(run: Callable[..., str], capsys: pytest.CaptureFixture[str], suffix: str) -> None:
    other = run("b", **timed(0.5, compute=0.5))
    assert main(["report", run("a", **FULL), "--compare", other, "-o", f"r.{suffix}"]) == 0
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["step", "1.00", "s", "500", "ms", "-50.0", "%"] in table
    assert Path(f"r.{suffix}").stat().st_size > 10_000


def test_numbers_of_the_other_run_can_be_named(run: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    a, b = run("a", **timed(compute=1.0)), run("b", **timed(0.5, compute=0.5))
    metrics = Path(b, "volume", names.METRICS_FILE)
    moved = metrics.rename("moved.jsonl")
    assert main(["report", a, "--compare", b, "--compare-metrics", str(moved)]) == 0
    assert "-50.0 %" in capsys.readouterr().out


def test_trace_beside_the_metrics_is_found(run: Callable[..., str]) -> None:
    folder = run("a", **FULL)
    events = [{"ph": "X", "cat": "kernel", "name": "nccl", "ts": 0, "dur": 1e6}]
    Path(folder, "volume/traces/trace-rank0-10-15.json").write_text(json.dumps({"traceEvents": events}))
    assert main(["report", folder]) == 0
    assert "By 1 trace of 5 steps from step 10 on" in Path("a-report.html").read_text()


@pytest.mark.parametrize("name", ["t.svg", "t.html"])
def test_timeline_alone_has_no_verdict(run: Callable[..., str], capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["report", run("a", **FULL), "--timeline", "-o", name]) == 0
    assert capsys.readouterr().out == f"{name}\n"
    text = Path(name).read_text()
    assert "loss of attempt 1" in text
    assert "Throughput" not in text
    assert "slow rank" not in text.lower()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--traces", "none"], "--traces none: no folder"),
        (["--compare-metrics", "m.jsonl"], "name the other run by --compare"),
        (["--compare", "."], "holds no status.json"),
    ],
)
def test_bad_arguments_are_named(
    run: Callable[..., str], arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", run("a", **FULL), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_columns_of_saves_hold_all_stalls() -> None:
    (drawn,) = named(content(full()).sections, "Saves").figures
    assert isinstance(drawn, Columns)
    assert sum(column.values[0] for column in drawn.columns) == pytest.approx(9.5)
