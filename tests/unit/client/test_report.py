"""`dtj report`: the facts in a status, the timeline of each rank, and pages that any viewer can read."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from dtj.main import main
from dtj.report.content import content
from dtj.report.content import run as run_of
from dtj.report.evidence import Evidence, evidence
from dtj.report.page import page
from dtj.report.samples import Sample, log_samples, metrics_samples
from dtj.report.scale import thinned, time_ticks, value_axis
from dtj.report.svg import svg
from dtj.report.timeline import State, Timeline, ranks_of, timeline
from dtj_contract import names
from dtj_core.plan.times import rfc3339

BEGIN = 1_700_000_000.0
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</script><b a=\"&'>\x00\x1b[31m\ud800 \U0001f525"


def job(replicas: int = 2, end: float = 100.0, **status: Any) -> dict[str, Any]:
    """Returns a job that began at BEGIN and ended `end` seconds later."""
    times = {"startTime": rfc3339(BEGIN), "completionTime": rfc3339(BEGIN + end)}
    return {
        "metadata": {"name": "count"},
        "spec": {"replicas": replicas},
        "status": {"phase": "Complete", **times, **status},
    }


def recovery(attempt: int, at: float, resumed: int | None = 40, last: int | None = 60, **seconds: float) -> Any:
    """Returns a record of a recovery that began `at` seconds after BEGIN."""
    spent = seconds or {"detect": 1.0, "stop": 2.0, "schedule": 0.0, "rendezvous": 3.0, "load": 4.0, "firstStep": 0.0}
    lost = None if resumed is None or last is None else last - resumed
    return {
        "attempt": attempt, "kind": "InPlace", "reason": "WorkerFailed", "counted": True, "time": rfc3339(BEGIN + at),
        "lastStep": last, "resumedStep": resumed, "lostSteps": lost, "seconds": spent,
    }  # fmt: skip


def failure(attempt: int, at: float, **fields: Any) -> dict[str, Any]:
    reason = {"reason": "WorkerFailed", "message": "rank 1 was terminated by SIGKILL"}
    return {"attempt": attempt, "time": rfc3339(BEGIN + at), "pod": "count-0", "node": "n1", **reason, **fields}


def sample(at: float, step: int, attempt: int = 1, loss: float | None = None) -> Sample:
    return Sample(time=BEGIN + at, step=step, attempt=attempt, loss=loss)


def spans(line: Timeline, rank: int = 0) -> list[tuple[float, float, str, int]]:
    """Returns the spans of a rank with times since BEGIN."""
    row = next(row for row in line.rows if row.first <= rank <= row.last)
    return [(round(s.begin - BEGIN, 3), round(s.end - BEGIN, 3), s.state.name, s.attempt) for s in row.spans]


def test_killed_rank_is_down_while_its_peers_stop_and_wait() -> None:
    steps = [sample(10, 10), sample(20, 20), sample(50, 50), sample(80, 60, 2)]
    status = {"recoveries": [recovery(2, 60)], "failures": [failure(1, 61, rank=1)]}
    line = timeline(evidence(job(**status), 1, steps))
    before = [(0.0, 40.0, "STEPS", 1), (40.0, 60.0, "LOST", 1)]
    after = [(66.0, 70.0, "LOAD", 2), (70.0, 100.0, "STEPS", 2)]
    stop = [(60.0, 61.0, "STALL", 2), (61.0, 63.0, "STOP", 2), (63.0, 66.0, "WAIT", 2)]
    assert spans(line, 0) == [*before, *stop, *after]
    assert spans(line, 1) == [*before, *((a, b, "DOWN", n) for a, b, _, n in stop), *after]


def test_lost_pod_takes_all_its_ranks_down() -> None:
    status = {
        "recoveries": [{**recovery(2, 60), "kind": "Pod", "reason": "PodLost"}],
        "failures": [failure(1, 60, ordinal=1, reason="PodLost")],
    }
    line = timeline(evidence(job(**status), 2))
    down = [rank for rank in range(4) if any(state == "DOWN" for *_, state, _ in spans(line, rank))]
    assert down == [2, 3]


def test_pod_of_a_group_with_spares_is_not_taken_for_its_ranks() -> None:
    """Another pod may have had the ranks of the ordinal, and an elastic group has had more of them."""
    lost = {"failures": [failure(1, 60, ordinal=1, reason="PodLost")], "recoveries": [recovery(2, 60, stop=1.0)]}
    with_spare = job(**lost)
    with_spare["spec"]["spares"] = 1
    facts = evidence(with_spare, 1)
    assert list(ranks_of(facts.failures[0], facts)) == []
    facts = evidence(job(**lost), 1)
    assert list(ranks_of(facts.failures[0], facts)) == [1]
    lost["recoveries"][0] |= {"fromReplicas": 5, "toReplicas": 2}
    assert evidence(job(**lost), 1).ranks == 5


def test_loading_ends_at_the_first_step_that_the_pace_of_the_log_implies() -> None:
    line = timeline(evidence(job(), 1, [sample(30, 10), sample(40, 20)]))
    assert spans(line) == [(0.0, 20.0, "LOAD", 1), (20.0, 100.0, "STEPS", 1)]


@pytest.mark.parametrize("written", [60, 62])
def test_time_in_whole_seconds_is_narrowed_by_the_logged_steps(written: int) -> None:
    steps = [sample(60.7, 60), sample(61.2, 50, 2)]
    found = spans(timeline(evidence(job(recoveries=[recovery(2, written, load=0.2)]), 1, steps)))
    (broke,) = [begin for begin, _, state, attempt in found if (state, attempt) == ("LOAD", 2)]
    assert 60.7 <= broke <= 61.0


def test_few_lost_steps_are_drawn_though_times_have_whole_seconds() -> None:
    steps = [sample(59.3, 140), sample(59.8, 150), sample(61.5, 155, 2)]
    line = timeline(evidence(job(recoveries=[recovery(2, 59, 151, 154, load=0.2)]), 1, steps))
    assert (59.85, 60.0, "LOST", 1) in spans(line)


def test_restart_that_the_status_forgot_shows_as_unknown() -> None:
    line = timeline(evidence(job(), 1, [sample(10, 10), sample(50, 50), sample(70, 41, 2)]))
    assert spans(line) == [
        (0.0, 40.0, "STEPS", 1), (40.0, 50.0, "LOST", 1), (50.0, 70.0, "UNKNOWN", 2), (70.0, 100.0, "STEPS", 2),
    ]  # fmt: skip


def test_steps_of_two_attempts_are_lost_if_neither_saved() -> None:
    status = {"recoveries": [recovery(2, 40, 0, 40, load=10.0), recovery(3, 70, 0, 20, load=10.0)]}
    states = [(state, attempt) for *_, state, attempt in spans(timeline(evidence(job(**status), 1)))]
    assert states == [("LOST", 1), ("LOAD", 2), ("LOST", 2), ("LOAD", 3), ("STEPS", 3)]


def test_steps_that_a_second_restart_kept_stay_lost_by_the_first() -> None:
    status = {"recoveries": [recovery(2, 40, 20, 40, load=10.0), recovery(3, 90, 60, 60, load=5.0)]}
    found = spans(timeline(evidence(job(**status), 1)))
    assert found[:2] == [(0.0, 20.0, "STEPS", 1), (20.0, 40.0, "LOST", 1)]
    assert [state for *_, state, attempt in found if attempt == 2] == ["LOAD", "STEPS"]


def test_failure_of_the_same_attempt_and_reason_is_the_cause() -> None:
    """Reads two failures of attempt 1: a peer notices the loss of its connection before the cause is known."""
    failures = [failure(1, 59, rank=0, reason="ConnectionLost"), failure(1, 60, rank=1)]
    line = timeline(evidence(job(recoveries=[recovery(2, 60)], failures=failures), 1))
    assert [any(state == "DOWN" for *_, state, _ in spans(line, rank)) for rank in (0, 1)] == [False, True]


def test_loss_of_lost_steps_is_drawn_apart() -> None:
    steps = [sample(at, at, 1, 1 / at) for at in (10, 20, 30, 50, 60)] + [sample(80, 60, 2, 0.1)]
    facts = evidence(job(recoveries=[recovery(2, 60)]), 1, steps)
    root = ElementTree.fromstring(svg(facts, timeline(facts)))
    curves = [(line.attrib["class"], "".join(line.itertext())) for line in root.iter(f"{SVG}polyline")]
    assert curves == [
        ("curve", "loss of attempt 1"), ("curve gone", "loss of attempt 1, steps lost"), ("curve", "loss of attempt 2"),
    ]  # fmt: skip


def test_steps_of_a_silent_script_are_not_called_lost() -> None:
    line = timeline(evidence(job(recoveries=[recovery(2, 40, None, None, load=10.0)]), 1))
    assert [state for *_, state, _ in spans(line)] == ["STEPS", "LOAD", "STEPS"]


def test_samples_of_an_earlier_run_are_dropped() -> None:
    assert evidence(job(), 1, [sample(-5, 900), sample(5, 1)]).samples == (sample(5, 1),)


@pytest.mark.parametrize("seed", range(40))
def test_spans_of_each_rank_cover_the_job_without_a_gap(seed: int) -> None:
    """Draws random records, consistent or not: a status may be cut, and clocks of two machines differ."""
    dice = random.Random(seed)
    records = [recovery(n, dice.uniform(-5, 110), dice.choice([None, dice.randrange(60)]), dice.randrange(90))
               for n in sorted(dice.sample(range(2, 9), dice.randrange(6)))]  # fmt: skip
    failures = [failure(dice.randrange(9), dice.uniform(-5, 110), rank=dice.randrange(4)) for _ in range(4)]
    steps = [sample(dice.uniform(0, 100), dice.randrange(90), dice.randrange(1, 9)) for _ in range(dice.randrange(9))]
    facts = evidence(job(recoveries=records, failures=failures), 2, steps)
    line = timeline(facts)
    assert [row.first for row in line.rows] == [0, 1, 2, 3]
    for row in line.rows:
        assert row.spans[0].begin == facts.begin
        assert row.spans[-1].end == facts.end
        assert all(a.end == b.begin and a.begin < a.end for a, b in zip(row.spans, row.spans[1:], strict=False))
    ElementTree.fromstring(svg(facts, line))


@pytest.mark.parametrize(("replicas", "rows"), [(1, 1), (32, 32), (64, 3), (512, 3)])
def test_large_group_shares_rows(replicas: int, rows: int) -> None:
    found = timeline(
        evidence(job(replicas, recoveries=[recovery(2, 60)], failures=[failure(1, 60, rank=min(7, replicas - 1))]), 1)
    ).rows
    assert len(found) == rows
    assert (found[0].first, found[-1].last) == (0, replicas - 1)


@pytest.mark.parametrize("replicas", [1, 4, 64, 512])
def test_drawing_is_bounded_in_height(replicas: int) -> None:
    """Takes down every second rank, so that no two neighbours share a row."""
    facts = evidence(job(replicas, recoveries=[recovery(n, 10.0 * n) for n in range(2, 7)]), 1)
    line = timeline(facts, separate=replicas)
    root = ElementTree.fromstring(svg(facts, line))
    assert float(root.attrib["viewBox"].split()[3]) < 900
    rows = {rect.attrib["y"] for rect in root.iter(f"{SVG}rect") if rect.attrib.get("class") == "load"}
    assert len(rows) >= replicas


def hostile() -> Evidence:
    status = {
        "recoveries": [{**recovery(2, 60), "reason": HOSTILE, "source": HOSTILE}],
        "failures": [failure(1, 60, rank=1, reason=HOSTILE, message=HOSTILE, stack=HOSTILE, logTail=HOSTILE)],
        "stragglers": [{"rank": 3, "ratio": 2.5}],
        "avoidedNodes": [HOSTILE, {"node": HOSTILE, "reason": HOSTILE, "message": HOSTILE}],
    }
    return evidence(job(2, **status) | {"metadata": {"name": HOSTILE}}, 1, [sample(5, 1, 1, 0.5), sample(50, 9, 1, 2)])


def test_svg_has_a_title_a_description_and_both_colour_schemes() -> None:
    facts = hostile()
    text = svg(facts, timeline(facts))
    root = ElementTree.fromstring(text.encode())
    assert root.attrib["role"] == "img"
    labels = [root.find(f"{SVG}{name}") for name in ("title", "desc")]
    assert root.attrib["aria-labelledby"].split() == [one.attrib["id"] for one in labels if one is not None]
    assert all(one is not None and one.text for one in labels)
    assert "prefers-color-scheme:dark" in text


class Tags(HTMLParser):
    """Collects the tags and attributes of a page, and checks that they nest."""

    VOID = ("meta",)

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_self_contained_and_well_formed() -> None:
    facts = hostile()
    text = page(content(run_of(facts)))
    found = Tags()
    found.feed(text)
    found.close()
    assert found.open == []
    assert not {"script", "link", "img", "b", "iframe"} & set(found.seen)
    assert not {name for name, _ in found.attributes} & {"src", "href", "onload", "srcset"}
    assert "url(" not in text
    assert "@import" not in text
    ElementTree.fromstring(text.partition("\n")[2])  # the page is XML too, after its doctype


def test_page_shows_the_stack_of_a_hung_rank_and_what_was_decided() -> None:
    hung = failure(1, 60, rank=1, reason="WorkerHung", stack='File "train.py", line 7 in step', action="Restart")
    facts = evidence(job(failures=[hung]), 1)
    text = page(content(run_of(facts)))
    assert 'File "train.py", line 7 in step' in text
    assert "attempt 1, rank 1, count-0 on n1, WorkerHung, Restart" in text


def test_page_shows_slow_ranks_avoided_nodes_and_the_source_of_the_state() -> None:
    status = {
        "stragglers": [{"rank": 3, "ratio": 2.46}],
        "avoidedNodes": [
            {"node": "n2", "reason": "PodLost", "until": "2026-01-02T00:00:00Z"},
            {"node": "n3", "reason": "NodeSick", "message": "it is cordoned"},
        ],
        "recoveries": [{**recovery(2, 60), "source": "memory"}],
        "progress": {"step": 7, "stepSource": "Optimizer"},
    }
    facts = evidence(job(**status), 1)
    text = page(content(run_of(facts)))
    assert "Slow ranks: rank 3: 2.5x." in text
    assert "Avoided nodes: n2 (PodLost, until 2026-01-02T00:00:00Z), n3 (NodeSick, it is cordoned)." in text
    assert "20 steps lost, resumed from memory" in text
    assert "step 7 of the last attempt" in text


@pytest.mark.parametrize("status", [
    {}, {"recoveries": None, "failures": "no"}, {"recoveries": [None, {}, {"attempt": "2"}]},
    {"recoveries": [{"attempt": 2, "time": "2026-01-01T00:00:00Z", "seconds": {"load": "x", "stop": float("nan")}}]},
    {"failures": [{"time": "yesterday"}, {"time": "2026-01-01T00:00:00Z", "rank": True}]},
    {"startTime": None, "completionTime": None}, {"progress": {"step": 1e400}, "goodput": "much"},
])  # fmt: skip
def test_status_of_another_version_makes_a_report(status: dict[str, Any]) -> None:
    facts = evidence(job(**status), 1)
    ElementTree.fromstring(svg(facts, timeline(facts)))


def test_metrics_file_with_torn_lines_keeps_the_others() -> None:
    lines = ['{"step": 10, "attempt": 2, "loss": 0.5, "time": 12.5}', "[1]", '{"step": 11}', '{"step": 12, "ti']
    assert metrics_samples("\n".join(lines)) == [Sample(time=12.5, step=10, attempt=2, loss=0.5)]


def test_lines_that_rank_0_printed_are_steps_of_their_attempt() -> None:
    lines = [
        (5.0, "[rank 0] step=10 epoch=1 loss=0.5 samples_per_second=9"), (6.0, "[rank 0] saved a=b"),
        (9.0, "[rank 0] step=8 loss=nan"), (9.5, "[rank 0] final step=20 loss=1e-3 accuracy=0.9"),
    ]  # fmt: skip
    assert log_samples(lines, [(7.0, 2)]) == [
        Sample(time=5.0, step=10, attempt=1, loss=0.5, numbers={"samples_per_second": 9.0}),
        Sample(time=9.0, step=8, attempt=2),
        Sample(time=9.5, step=20, attempt=2, loss=0.001),
    ]  # fmt: skip


@pytest.mark.parametrize("seconds", [0.001, 0.3, 8, 92, 3600, 86400, 30 * 86400])
def test_time_axis_has_few_ticks_with_distinct_texts(seconds: float) -> None:
    ticks = time_ticks(seconds)
    assert 2 <= len(ticks) <= 10
    assert len({text for _, text in ticks}) == len(ticks)
    assert ticks[-1][0] <= seconds


@pytest.mark.parametrize("losses", [[1.0], [0.0], [2.0, 0.001], [5.0, 4.0], [-3.0, 1.0], [0.0, 1e-9]])
def test_value_axis_places_each_loss_inside(losses: list[float]) -> None:
    place, ticks = value_axis(losses)
    assert all(-1e-9 <= at <= 1 + 1e-9 for at in [place(loss) for loss in losses] + [at for at, _ in ticks])
    assert len({text for _, text in ticks}) == len(ticks) <= 12


def test_long_curve_is_thinned_and_keeps_its_end() -> None:
    kept = thinned(range(100_001), 1000)
    assert len(kept) <= 1002
    assert (kept[0], kept[-1]) == (0, 100_000)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Returns the folder of a local run whose volume has a metrics file."""
    monkeypatch.chdir(tmp_path)
    folder, volume = tmp_path / "run", tmp_path / "volume"
    (volume / "step-00000010").mkdir(parents=True)
    folder.mkdir()
    written = job(recoveries=[recovery(2, 60)], checkpoint={"step": 10, "path": str(volume / "step-00000010")})
    (folder / "status.json").write_text(json.dumps(written))
    (volume / names.METRICS_FILE).write_text(json.dumps({"step": 10, "attempt": 1, "loss": 0.25, "time": BEGIN + 9}))
    return folder


def test_report_of_a_local_run_finds_its_losses(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run)]) == 0
    path, verdict, *_ = capsys.readouterr().out.splitlines()
    assert (path, verdict.partition(":")[0]) == ("count-report.html", "not enough numbers")
    text = Path("count-report.html").read_text()
    assert "loss of attempt 1" in text
    assert "20 steps lost" in text


def test_report_as_svg_and_png(run: Path) -> None:
    assert main(["report", str(run), "-o", "r.svg"]) == main(["report", str(run), "-o", "r.png"]) == 0
    ElementTree.parse("r.svg")
    assert Path("r.png").read_bytes().startswith(b"\x89PNG")


def test_png_without_matplotlib_reports_what_to_install(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["report", str(run), "-o", "r.png"]) == 2
    error = capsys.readouterr().err
    assert "needs matplotlib" in error
    assert "write .html or .svg" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "-o", "r.pdf"], "end the name in .html, .svg, .png"),
        (["."], "holds no status.json"),
        (["run", "--metrics", "none.jsonl"], "none.jsonl: No such file"),
        (["run", "-o", "none/r.html"], "can't write none/r.html"),
        (["volume/metrics.jsonl"], "holds no DistributedTrainingJob"),
    ],
)
def test_bad_arguments_are_named(
    run: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *arguments]) in (1, 2)
    assert message in capsys.readouterr().err


def test_states_have_distinct_colours() -> None:
    from dtj.report.shapes import DARK, LIGHT
    from dtj.report.svg import CLASSES

    for theme in (LIGHT, DARK):
        assert len({theme[CLASSES[state]] for state in State}) == len(State)
