"""`dtj simulate`: its flags and their errors, its table and JSON, and the charts."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from dtj.main import main
from dtj.simulate import units

SVG = "{http://www.w3.org/2000/svg}"
PROFILE: dict[str, Any] = {
    "samples": 4,
    "seconds": {"data": 0.0, "forward": 0.02, "backward": 0.04, "optimizer": 0.01},
    "gradient_bytes": 50_000_000,
    "measured": "2026-11-25, one core",
}
FAILURES = ["--mtbf", "1000h", "--recovery", "30s", "--checkpoint", "5s"]


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(PROFILE))
    return path


def simulate(profile: Path, *arguments: str, link: str = "10Gbit/s,50us") -> int:
    return main(["simulate", "--profile", str(profile), "--link", link, *arguments])


def document(capsys: pytest.CaptureFixture[str], profile: Path, *arguments: str) -> dict[str, Any]:
    """Returns what `-o json` prints."""
    assert simulate(profile, "-o", "json", *arguments) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_table_has_a_labelled_row_for_each_number_of_ranks(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(profile, "--ranks", "1,2,...,16", *FAILURES) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["ranks", "source"]
    assert [line.split()[:2] for line in lines[:5]] == [
        ["1", "measured"],
        *([str(ranks), "modelled"] for ranks in (2, 4, 8, 16)),
    ]
    assert "Daly" in lines[-1]


def test_json_has_the_parts_of_each_step(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (alone, two) = document(capsys, profile, "--ranks", "1,2", *FAILURES)["rows"]
    assert (alone["source"], alone["stepSeconds"]) == ("measured", pytest.approx(0.07))
    assert two["stepSeconds"] == pytest.approx(sum(two["parts"][key] for key in ("compute", "straggling", "exposed")))
    assert two["communicationShare"] == pytest.approx(two["parts"]["exposed"] / two["stepSeconds"])
    assert 0.9 < two["goodput"] < 1
    assert two["checkpointEverySeconds"] > 0


def test_measured_step_stands_beside_the_model(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, profile, "--ranks", "1,2", "--measured", "2=112ms")["rows"]
    assert [(row["ranks"], row["source"]) for row in found] == [(1, "measured"), (2, "measured"), (2, "modelled")]
    assert found[1]["stepSeconds"] == 0.112


def test_bucket_size_of_the_flag_replaces_that_of_the_profile(
    profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small, large = (
        document(capsys, profile, "--ranks", "2", "--bucket-mb", size)["rows"][0]["parts"] for size in ("1", "100")
    )
    assert small["exposed"] < large["exposed"]
    assert small["busy"] > large["busy"]


def test_link_is_read_from_its_measurement(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = tmp_path / "link.json"
    measured.write_text(json.dumps({"latency_seconds": 50e-6, "bytes_per_second": 1.25e9}))
    assert simulate(profile, "-o", "json", link=str(measured)) == 0
    from_file = json.loads(capsys.readouterr().out)
    assert from_file == document(capsys, profile)


def test_forms_of_ranks_rates_and_durations() -> None:
    assert units.ranks("1,2,4,8,...,64") == [1, 2, 4, 8, 16, 32, 64]
    assert units.ranks("3,9,...,100") == [3, 9, 27, 81, 100]
    assert units.rate("200Mbit/s", "--link") == 25e6
    assert units.rate("3GB/s", "--link") == 3e9
    assert units.seconds("50us", "--link") == pytest.approx(50e-6)
    assert units.seconds("30d", "--mtbf") == 30 * 86400


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "4,2"], "--ranks 4,2: write whole numbers from 1 to 10000000 that rise"),
        (["--ranks", "0"], "--ranks 0: write whole numbers"),
        (["--ranks", "...,8"], "--ranks ...,8: write two numbers before `...`"),
        (["--ranks", "2,3,...,8"], "--ranks 2,3,...,8: write two numbers before `...`"),
        (["--ranks", "1,2,..."], "--ranks 1,2,...: write two numbers before `...`"),
        (["--link", "25Gbit/s"], "--link 25Gbit/s: write bandwidth and latency, such as 25Gbit/s,50us"),
        (["--link", "25,50us"], "--link 25: write a rate above 0, such as 25Gbit/s"),
        (["--link", "0Gbit/s,50us"], "--link 0Gbit/s: write a rate above 0"),
        (["--link", "25Gbit/s,50"], "--link 50: write a duration with its unit"),
        (["--link", "none.json"], "--link none.json: No such file or directory; write the path of a link.json"),
        (["--local-link", "fast"], "--local-link fast: write bandwidth and latency"),
        (["--ranks-per-node", "0"], "--ranks-per-node 0: write a whole number, 1 or more"),
        (["--nodes-per-rack", "0"], "--nodes-per-rack 0: write a whole number, 1 or more"),
        (["--oversubscription", "4"], "--oversubscription: write --nodes-per-rack too"),
        (["--oversubscription", "0.5", "--nodes-per-rack", "4"], "--oversubscription 0.5: write 1 or more"),
        (["--rack-link", "1Gbit/s,1ms"], "--rack-link: write --nodes-per-rack too"),
        (["--compression", "0"], "--compression 0: write a number above 0, such as 2 for half of the bytes"),
        (["--compression", "0.5"], "--compression 0.5: write 1 or more"),
        (["--compression", "2,3"], "--compression 3: write a duration with its unit"),
        (
            ["--compression", "2", "--collective", "sharded"],
            "--compression: the model has none for --coll",
        ),
        (
            ["--no-overlap", "--collective", "sharded"],
            "--no-overlap: the model of --collective sharded always overlaps",
        ),
        (["--placement", "interleaved", "--collective", "hierarchical"], "--placement interleaved: --collective hier"),
        (["--bucket-mb", "x"], "--bucket-mb x: write a number above 0, such as 25"),
        (["--spread", "1"], "--spread 1: write a duration with its unit"),
        (["--global-batch", "-1"], "--global-batch -1: write a number above 0, such as 8192"),
        (["--recovery", "30s"], "--recovery: write --mtbf too"),
        (
            ["--mtbf", "1000h", "--recovery", "30s"],
            "--checkpoint: write with --mtbf the time that a save stops the steps",
        ),
        (["--mtbf", "1000h", "--checkpoint", "5s"], "--recovery: write with --mtbf the time from a failure"),
        ([*FAILURES, "--checkpoint-every", "0s"], "--checkpoint-every 0s: write a duration above 0"),
        (["--mtbf", "0s", *FAILURES[2:]], "--mtbf 0s: write a duration above 0"),
        (["--measured", "2"], "--measured 2: write ranks and the time of a step, such as --measured 8=112ms"),
        (["--measured", "3=1s"], "--measured 3=1s: write 3 into --ranks too"),
        (["--measured", "2=0s"], "--measured 2=0s: write a time above 0"),
        (["--page", "x.pdf"], "--page x.pdf: end the name in .html, .svg, .png"),
    ],
)
def test_wrong_flag_is_named_with_what_to_write(
    profile: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(profile, *arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": 0}, "samples=0.0: write a number above 0"),
        ({"samples": "many"}, "samples='many': write a number above 0"),
        ({"samples": float("nan")}, "samples=nan: write a number above 0"),
        ({"seconds": {"forward": 1.0}}, "seconds.data=None: write a number, 0 or more"),
        ({"seconds": 1}, "seconds: write the seconds of data, forward, backward, optimizer"),
        ({"seconds": dict.fromkeys(PROFILE["seconds"], 0)}, "seconds: write at least one number above 0"),
        ({"gradient_bytes": None}, "gradient_bytes=None: write a number, 1 or more"),
        ({"gradients": [[1]]}, "gradients: write a list of [bytes, seconds since the backward pass began]"),
        ({"gradients": [[1, -1]]}, "gradients[0][1]=-1: write a number, 0 or more"),
        ({"spread_seconds": True}, "spread_seconds=True: write a number, 0 or more"),
        ({"micro_batches": 0}, "micro_batches=0: write a number, 1 or more"),
        ({"version": 2}, "version 2: this dtj reads version 1"),
    ],
)
def test_wrong_field_of_the_profile_is_named(
    tmp_path: Path, change: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(PROFILE | change))
    assert simulate(path) == 2
    assert message.replace("samples=0.0", "samples=0") in capsys.readouterr().err


def test_profile_that_is_no_profile_names_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.json"
    for content, message in (("{", "no JSON"), ("[]", "write an object, such as")):
        broken.write_text(content)
        assert simulate(broken) == 2
        assert f"--profile {broken}: {message}" in capsys.readouterr().err
    assert simulate(tmp_path / "none.json") == 2
    assert "`python -m dtj_trainer.measure profile --config train.yaml` writes one" in capsys.readouterr().err


class _Tags(HTMLParser):
    """Counts tags, and keeps the addresses of other resources."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]


def curves(document: ElementTree.Element) -> dict[str, int]:
    """Returns the number of points of each curve by its name."""
    found = document.iter(f"{SVG}polyline")
    return {one.findtext(f"{SVG}title") or "": len(one.attrib["points"].split()) for one in found}


def test_svg_has_a_curve_for_each_figure(profile: Path, tmp_path: Path) -> None:
    drawing = tmp_path / "scaling.svg"
    assert simulate(profile, "--ranks", "1,2,4,8", "--page", str(drawing), "--measured", "8=0.2s", *FAILURES) == 0
    root = ElementTree.parse(drawing).getroot()
    expected = {"samples/s": 4, "without communication": 4, "weak efficiency": 4, "strong efficiency": 3}
    assert curves(root) == expected | {"communication": 4, "goodput": 4}
    titles = [one.findtext(f"{SVG}title") for one in root.iter(f"{SVG}circle")]
    assert titles.count("8 ranks, measured") == 2
    assert "nan" not in drawing.read_text()


def test_page_needs_nothing_from_elsewhere(profile: Path, tmp_path: Path) -> None:
    page = tmp_path / "scaling.html"
    assert simulate(profile, "--page", str(page)) == 0
    parser = _Tags()
    parser.feed(page.read_text())
    assert {"svg", "pre", "polyline"} <= set(parser.seen)
    assert parser.addresses == []
    assert "modelled" in page.read_text()


def test_chart_of_a_single_number_of_ranks_is_drawn(profile: Path, tmp_path: Path) -> None:
    drawing = tmp_path / "one.svg"
    assert simulate(profile, "--ranks", "8", "--page", str(drawing)) == 0
    assert curves(ElementTree.parse(drawing).getroot())["samples/s"] == 1


def test_png_is_drawn(profile: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawing = tmp_path / "scaling.png"
    assert simulate(profile, "--page", str(drawing)) == 0
    assert drawing.read_bytes().startswith(b"\x89PNG")


def test_page_that_can_not_be_written_is_one_line(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(profile, "--page", str(tmp_path / "none" / "x.svg")) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "can't write" in line
