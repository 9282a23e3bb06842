"""`dtj bench`: trials that end in each way, a bench that was stopped continues, and nothing of it is left."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from dtj.bench import link
from dtj.local import processes
from dtj.main import main
from tests.lib.waiting import wait_until

FOLDER = "BENCH_TEST_FOLDER"
"""By this variable the ranks of a test are found."""
SMALL = ["--model", "mlp:width=16", "--steps", "3", "--warmup", "2", "--batch", "4", "--repeats", "1"]


@pytest.fixture
def python(tmp_path: Path) -> str:
    """Returns an interpreter whose ranks train nothing."""
    script = tmp_path / "python"
    # Under torchrun the words of the launcher come first.
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("bench_ranks.py")} "$@"\n')
    script.chmod(0o755)
    return str(script)


def bench(folder: Path, python: str, *flags: str) -> int:
    return main(["bench", *SMALL, "--python", python, "-o", str(folder), *flags])


def lines(folder: Path) -> list[dict[str, Any]]:
    """Returns the whole lines of results.jsonl."""
    path = folder / "results.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def trials(folder: Path) -> list[dict[str, Any]]:
    return [line for line in lines(folder) if line["kind"] == "trial"]


def test_bench_writes_trials_summary_and_plots(tmp_path: Path, python: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert bench(out, python, "--strategy", "ddp", "--world", "1,2", "--scaling", "weak,strong", "--repeats", "2") == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0].split()[:5] == ["scaling", "link", "batch", "ranks", "arm"]
    assert "lightning     not installed" in captured.out
    assert "[24/24]" in captured.err
    assert len(trials(out)) == 24
    summary = json.loads((out / "results.json").read_text())
    by_name = {(row["scaling"], row["arm"], row["world"]): row for row in summary["rows"]}
    assert by_name["weak", "ddp", 2]["efficiency"] == 0.5
    assert by_name["strong", "ddp", 2]["efficiency"] == 0.25
    assert len((out / "results.csv").read_text().splitlines()) == 13
    for scaling in ("weak", "strong"):
        drawing = ElementTree.fromstring((out / f"scaling-{scaling}-none-4.svg").read_text())
        curves = drawing.findall(".//{http://www.w3.org/2000/svg}polyline")
        assert len(curves) == 9
        assert (out / f"scaling-{scaling}-none-4.png").read_bytes().startswith(b"\x89PNG")


def test_trial_that_fails_or_hangs_is_a_failure_with_its_reason(
    tmp_path: Path, python: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    monkeypatch.setenv(FOLDER, str(out))
    flags = ["--strategy", "fails,hangs,killed,silent,ddp", "--arm", "ours", "--world", "2", "--timeout", "2s"]
    assert bench(out, python, *flags) == 0
    found = {one["arm"]: one for one in trials(out)}
    assert {arm: one["outcome"] for arm, one in found.items()} == {
        "fails": "failed", "hangs": "timeout", "killed": "failed", "silent": "failed", "ddp": "ok"
    }  # fmt: skip
    assert found["fails"]["reason"] == "exit code 93: ConfigError: --batch: too many samples"
    assert found["hangs"]["reason"] == "not done after 2 s (--timeout); its last line: step 3"
    assert "step_seconds" not in found["hangs"]
    assert ranks(out) == []
    assert "hangs, 2 ranks, 4 samples each: 1 failed: not done after 2 s" in capsys.readouterr().out


def test_failed_trials_run_again_only_on_request(tmp_path: Path, python: str) -> None:
    out, flags = tmp_path / "out", ["--strategy", "fails,ddp", "--arm", "ours", "--world", "1"]
    assert bench(out, python, *flags) == 0
    before = trials(out)
    assert bench(out, python, *flags) == 0
    assert trials(out) == before
    assert bench(out, python, *flags, "--retry") == 0
    again = trials(out)
    assert [one["arm"] for one in again] == ["ddp", "fails"]
    assert again[0] in before
    assert again[1] not in before


def test_bench_without_a_good_trial_exits_with_1(tmp_path: Path, python: str) -> None:
    assert bench(tmp_path / "out", python, "--strategy", "fails", "--arm", "ours", "--world", "1") == 1


def test_more_repeats_and_worlds_keep_the_trials_that_are_there(tmp_path: Path, python: str) -> None:
    out, flags = tmp_path / "out", ["--strategy", "ddp", "--arm", "ours"]
    assert bench(out, python, *flags, "--world", "1") == 0
    first = trials(out)
    # A killed bench may leave a part of a line.
    with (out / "results.jsonl").open("a") as file:
        file.write('{"kind": "trial", "sca')
    assert bench(out, python, *flags, "--world", "1,2", "--repeats", "2") == 0
    assert trials(out)[:1] == first
    assert len(trials(out)) == len((out / "results.jsonl").read_text().splitlines()) - 1 == 4


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--steps", "4"], "its trials have steps 3, and now it is 4; write --steps 3, --fresh to drop them"),
        (["--model", "gpt"], "its trials have model mlp:width=16, and now it is gpt; write --model mlp:width=16"),
        (["--warmup", "1"], "its trials have warmup 2, and now it is 1"),
        (["--threads", "2"], "its trials have threads 1, and now it is 2"),
    ],
)
def test_trials_of_another_setup_are_not_mixed(
    tmp_path: Path, python: str, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out, common = tmp_path / "out", ["--strategy", "ddp", "--arm", "ours", "--world", "1"]
    assert bench(out, python, *common) == 0
    assert bench(out, python, *common, *flags) == 2
    assert message in capsys.readouterr().err
    assert len(trials(out)) == 1
    assert bench(out, python, *common, *flags, "--fresh") == 0
    assert len(lines(out)) == 2


def test_trials_of_another_torch_are_not_mixed(
    tmp_path: Path, python: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--strategy", "ddp", "--arm", "ours", "--world", "1"]
    assert bench(tmp_path, python, *common) == 0
    monkeypatch.setenv("TORCH", "2.14")
    assert bench(tmp_path, python, *common) == 2
    assert "its trials have torch 2.13, and now it is 2.14; --fresh" in capsys.readouterr().err


def test_folder_belongs_to_one_bench_at_a_time(tmp_path: Path, python: str, capsys: pytest.CaptureFixture[str]) -> None:
    with (tmp_path / "results.jsonl").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert bench(tmp_path, python, "--world", "1") == 1
    assert "another dtj bench writes it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--world", "0"], "--world 0: write whole numbers from 1 to 1024"),
        (["--world", "1,x"], "--world 1,x: write whole numbers"),
        (["--batch", ""], "--batch : write whole numbers"),
        (["--scaling", "medium"], "--scaling medium: write weak"),
        (["--repeats", "0"], "--repeats 0: write 1 or more"),
        (["--steps", "1"], "--steps 1: write 2 or more"),
        (["--warmup", "0"], "--warmup 0: write 1 or more"),
        (["--timeout", "0"], "--timeout 0: write a duration above 0"),
        (["--timeout", "soon"], "--timeout soon: write a duration such as 90s"),
        (["--link", "fast"], "--link fast: write none, a rate"),
        (["--arm", "lightning"], "--arm lightning: lightning is not installed for the ranks' interpreter"),
        (["--strategy", "dpp"], "--strategy dpp: write one or more of ddp"),
        (["--image", "dtj-trainer:cpu"], "--image dtj-trainer:cpu: only with --link cluster"),
        (["--link", "cluster"], "--image: required with --link cluster"),
        (["--link", "cluster", "--image", "i", "--arm", "torchrun-ddp"], "--arm torchrun-ddp: in a pod, the agent has"),
    ],
)
def test_flag_that_can_not_work_is_named(
    tmp_path: Path, python: str, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(tmp_path / "out", python, *flags) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_interpreter_without_the_trainer_library_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(tmp_path / "out", "/bin/false") == 1
    assert "--python /bin/false: no output; install dtj-trainer[torch] there" in capsys.readouterr().err


def test_link_without_root_or_tools_is_named(
    tmp_path: Path, python: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert bench(tmp_path / "out", python, "--link", "none,1gbit") == 2
    assert "--link 1gbit: a shaped link needs root; start dtj with sudo, or write --link" in capsys.readouterr().err
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    assert bench(tmp_path / "out", python, "--link", "1gbit") == 2
    assert "--link 1gbit: a shaped link needs `ip`; install iproute2" in capsys.readouterr().err


def started(folder: Path, python: str, *flags: str) -> subprocess.Popen[bytes]:
    """Starts a bench as a process of its own, which hears SIGINT also where a shell has this one in the background."""
    command = [sys.executable, "-m", "dtj.main", "bench", *SMALL, "--python", python, "-o", str(folder), *flags]
    environ = os.environ | {FOLDER: str(folder)}
    null = subprocess.DEVNULL
    return subprocess.Popen(command, env=environ, stdout=null, stderr=null, preexec_fn=hear_sigint)


def hear_sigint() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ranks(folder: Path) -> list[int]:
    """Returns the living ranks of a bench. Other benches may run on this machine."""
    return [pid for pid, environ in processes.tagged("bench-") if environ.get(FOLDER) == str(folder)]


@pytest.mark.thorough
@pytest.mark.torch
def test_killed_bench_continues_after_its_last_trial(tmp_path: Path) -> None:
    flags = ["--strategy", "ddp", "--arm", "ours", "--world", "1,2"]
    first = started(tmp_path, sys.executable, *flags)
    try:
        wait_until("the first trial", lambda: len(trials(tmp_path)) == 1, timeout=200)
        first.send_signal(signal.SIGKILL)
    finally:
        first.kill()
        first.wait()
    wait_until("the end of the ranks", lambda: not ranks(tmp_path), timeout=60)
    (kept,) = trials(tmp_path)
    assert bench(tmp_path, sys.executable, *flags) == 0
    alone, two = trials(tmp_path)
    assert alone == kept
    assert (two["world"], two["outcome"], two["backend"]) == (2, "ok", "gloo")
    assert two["loss"] > 0
    assert 0 < two["communication_share"] <= 1
    assert two["imbalance"] >= 0


def test_interrupted_bench_ends_its_ranks_and_exits_with_130(tmp_path: Path, python: str) -> None:
    running = started(tmp_path, python, "--strategy", "hangs", "--arm", "ours", "--world", "2")
    try:
        wait_until("both ranks", lambda: len(ranks(tmp_path)) >= 2, timeout=60)
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 130
    finally:
        running.kill()
    assert ranks(tmp_path) == []
    assert trials(tmp_path) == []


def can_make_links() -> bool:
    return os.geteuid() == 0 and all(shutil.which(tool) for tool in link.TOOLS)


needs_links = pytest.mark.skipif(not can_make_links(), reason="network namespaces need root, ip and tc")


@needs_links
def test_link_is_shaped_and_removed_at_the_end() -> None:
    with link.link(2e6) as (first, _):
        assert set(link.existing()) >= {link.owner()}
        shown = subprocess.run([*link.within(first), "tc", "qdisc"], capture_output=True, text=True, check=True).stdout
        assert "tbf" in shown
        assert "rate 2Mbit" in shown
    assert link.owner() not in link.existing()


@needs_links
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_of_a_bench_on_a_link_that_ends_early(
    tmp_path: Path, python: str, number: signal.Signals
) -> None:
    running = started(tmp_path, python, "--strategy", "hangs", "--arm", "ours", "--world", "2", "--link", "200mbit")
    try:
        wait_until("both ranks", lambda: len(ranks(tmp_path)) >= 2, timeout=60)
        mine = link.owner(running.pid)
        assert mine in link.existing()
        running.send_signal(number)
        running.wait(60)
    finally:
        running.kill()
        running.wait()
    wait_until("the end of the ranks", lambda: not ranks(tmp_path), timeout=60)
    wait_until("the end of the namespaces", lambda: mine not in link.existing(), timeout=60)


@needs_links
def test_namespaces_of_a_process_that_is_gone_are_swept() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    stale = f"dtj-bench-{gone.pid}-1"
    subprocess.run(["ip", "netns", "add", f"{stale}-a"], check=True)
    with link.link(1e9):
        assert stale not in link.existing()
        assert link.owner() in link.existing()
        link.sweep()
        assert link.owner() in link.existing()


@pytest.mark.thorough
@needs_links
@pytest.mark.torch
def test_ranks_on_two_nodes_train_over_the_link(tmp_path: Path) -> None:
    flags = ["--strategy", "", "--arm", "torchrun-ddp", "--world", "2", "--link", "200mbit"]
    assert bench(tmp_path, sys.executable, *flags) == 0
    (found,) = trials(tmp_path)
    assert (found["outcome"], found["link"], found["world"]) == ("ok", "200mbit", 2)
    assert found["exposed_seconds"] > 0
    assert link.owner() not in link.existing()
