"""The benchmark of launchers: what its table counts and judges, and what its shell loop does."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engines import arms
from benchmarks.engines.arms import ARMS, ENGINES, OURS, Arm
from benchmarks.engines.results import render
from benchmarks.engines.trial import HANG_SECONDS
from tests.lib.waiting import wait_until

MINE = next(arm for arm in ARMS if arm.engine == "jax" and arm.launcher == OURS)
PEER = next(arm for arm in ARMS if arm.engine == "jax" and arm.launcher == arms.LOOP)
LOOP = Path(arms.__file__).with_name("loop.sh")


def trial(arm: Arm, seconds: float | None, end: str = "recovered") -> dict[str, Any]:
    more = {} if seconds is None else {"lost": 6, "ranks": 4}
    return {"arm": arm.name, "trial": 0, "load": 0.5, "seconds": seconds, "end": end, **more}


def row(arm: Arm, *trials: dict[str, Any]) -> str:
    """Returns the cells of an arm from `recovered` on."""
    table = render("2026-11-28: 10 trials, here.", trials)
    (line,) = [line for line in table.splitlines() if f"| {arm.killed} | {arm.launcher} |" in line]
    return line.partition(f"| {arm.launcher} | ")[2]


def test_hang_and_end_count_as_the_limit_each_in_its_own_column() -> None:
    found = [trial(PEER, None, "hung"), trial(PEER, None, "ended"), trial(PEER, 2.0)]
    assert row(PEER, *found) == "1/3 | 1 | 1 | ≥ 120 | ≥ 120 | 6 | 4 | not measured yet |"


@pytest.mark.parametrize(
    ("mine", "verdict"),
    [
        ([2.0, 2.0, 3.0], "**ahead**, 2.00x"),
        ([5.0, 5.0, 1.0], "**not ahead**, 0.80x"),
        ([2.0, 2.0, None], "**not ahead**, 2.00x"),
    ],
)
def test_ahead_is_a_lower_median_that_recovers_in_each_trial(mine: list[float | None], verdict: str) -> None:
    found = [trial(MINE, one, "hung" if one is None else "recovered") for one in mine]
    assert row(PEER, *found, trial(PEER, 4.0)).endswith(f" | {verdict} |")
    assert row(MINE, *found, trial(PEER, 4.0)).endswith(" |  |")


def test_ratio_to_a_median_that_is_a_hang_is_a_lower_bound() -> None:
    found = row(PEER, trial(MINE, HANG_SECONDS / 40), trial(PEER, None, "hung"))
    assert found.endswith("| **ahead**, ≥ 40.00x |")


def test_killed_node_is_compared_with_our_own_killed_node() -> None:
    found = [
        trial(arm, seconds)
        for arm, seconds in zip([one for one in ARMS if one.engine == "ray"], (1, 2, 2, 10, 30, 30), strict=True)
    ]
    node = next(arm for arm in ARMS if arm.node and arm.launcher != OURS)
    assert row(node, *found).endswith("| **ahead**, 3.00x |")


def test_number_of_trials_is_that_of_each_arm_and_not_the_one_that_was_asked_for() -> None:
    text = render("2026-11-28: 10 trials, here.", [trial(MINE, 1.0)])
    assert "10 trials" not in text
    assert "2026-11-28: here." in text


def test_each_engine_has_one_arm_of_ours_for_each_kill_and_a_script() -> None:
    kills = {(arm.engine, arm.node) for arm in ARMS}
    own = [(arm.engine, arm.node) for arm in ARMS if arm.launcher == OURS]
    assert sorted(own) == sorted(kills)
    assert {engine for engine, _ in kills} == set(ENGINES)
    assert len({arm.name for arm in ARMS}) == len(ARMS)
    assert all(arms.script(engine).exists() for engine in ENGINES)


LEARNED = "warm process: 70 modules that the script imported are imported for its next start, in 1.2 s\n"
LEFT_OUT = "warm process: no module deepspeed (it has started 1 threads)\n"


@pytest.mark.parametrize(
    ("engine", "logs", "reports", "expected"),
    [
        ("deepspeed", (LEARNED, LEARNED), 2, True),
        ("deepspeed", (LEFT_OUT + LEARNED, LEFT_OUT + LEARNED), 2, True),
        ("deepspeed", (LEFT_OUT + LEARNED, LEFT_OUT), 2, False),
        ("deepspeed", (LEARNED, ""), 2, False),
        ("deepspeed", ("", ""), 0, False),
        ("ray", ("", ""), 2, True),
    ],
)
def test_arm_of_ours_is_settled_as_soon_as_each_warm_process_has_learned(
    engine: str, logs: tuple[str, ...], reports: int, expected: bool
) -> None:
    group = arms.ours(engine)()
    try:
        for ordinal, text in enumerate(logs):
            state = group.folder / f"run/pods/recovery-{ordinal}"
            state.mkdir(parents=True)
            (group.folder / f"run/recovery-{ordinal}.log").write_text(text)
            if ordinal < reports:
                (state / "imports.json").write_text("{}")
        assert group.is_settled() is expected
    finally:
        group.close()


def loop(how: str, line: str, folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["bash", str(LOOP), how, "2", line], cwd=folder, stderr=subprocess.DEVNULL)


def test_loop_starts_all_ranks_again_when_one_has_failed_and_ends_when_none_has(tmp_path: Path) -> None:
    line = 'echo $RANK >> starts; [ $RANK = 0 ] || [ "$(grep -c 1 starts)" = 2 ]'
    assert loop("wait", line, tmp_path).wait(30) == 0
    assert sorted((tmp_path / "starts").read_text().split()) == ["0", "0", "1", "1"]


def test_loop_that_kills_does_not_wait_for_the_survivors(tmp_path: Path) -> None:
    survivor = "[ $RANK = 1 ] || { touch up; exec sleep 600; }"
    line = f"[ -e failed ] && exit 0; {survivor}; until [ -e up ]; do sleep 0.01; done; touch failed; exit 1"
    assert loop("kill", line, tmp_path).wait(30) == 0
    assert (tmp_path / "failed").exists()


def test_loop_that_waits_has_the_survivors_hang(tmp_path: Path) -> None:
    line = "echo $$ >> pids; [ $RANK = 0 ] || exit 1; exec sleep 600"
    process = loop("wait", line, tmp_path)
    pids = tmp_path / "pids"
    try:
        wait_until("both ranks", lambda: pids.exists() and len(pids.read_text().split()) == 2)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        assert len(pids.read_text().split()) == 2
    finally:
        process.kill()
        subprocess.run(["kill", "-9", *pids.read_text().split()], stderr=subprocess.DEVNULL, check=False)
