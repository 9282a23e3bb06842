"""The pure parts of `dtj bench`: the grid, the cores, the processes of a trial, the rows and the efficiency."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dtj.bench import plan
from dtj.bench.cores import OWN, SHARED, THREAD, Cores
from dtj.bench.launch import Options, starts
from dtj.bench.plan import Cell, Grid
from dtj.bench.summary import Row, other_work, rows
from dtj.bench.table import as_csv, document, notes, table
from dtj.errors import InputError

SETUP = {"model": "mlp", "steps": 30, "warmup": 10, "threads": 1, "torch": "2.13", "device": "a CPU", "cores": 2}
OPTIONS = Options(python="python3", model="mlp", steps=30, warmup=10, threads=1, timeout=60.0)


def cell(**changes: Any) -> Cell:
    return Cell(**({"scaling": "weak", "link": "none", "batch": 32, "world": 1, "arm": "ddp"} | changes))


def grid(**changes: Any) -> Grid:
    given = {
        "scalings": ["weak"],
        "links": ["none"],
        "batches": [32],
        "worlds": [1, 2],
        "arms": ["a", "b"],
        "repeats": 2,
    }
    return Grid(**(given | changes))


def record(of: Cell, seconds: float, **changes: Any) -> dict[str, Any]:
    """Returns a trial that ended well with this step."""
    figures = {
        "step_seconds": seconds, "samples_per_second": of.global_batch / seconds, "memory_bytes": 1e9, "loss": 1.0,
        "communication_share": 0.2, "overlap": None, "imbalance": 0.0, "cores": OWN,
    }  # fmt: skip
    place = {"scaling": of.scaling, "link": of.link, "batch": of.batch, "world": of.world, "arm": of.arm}
    return {"kind": "trial", **place, "outcome": "ok"} | figures | changes


def test_each_cell_has_a_turn_in_each_repeat() -> None:
    trials = grid(links=["none", "200mbit"]).trials()
    assert len(trials) == len(set(trials)) == 16
    for repeat in (0, 1):
        some = [one for one in trials if one.repeat == repeat]
        assert {one.cell for one in some} == set(grid(links=["none", "200mbit"]).cells())
        assert [one.cell.link for one in some] == ["none"] * 4 + ["200mbit"] * 4
    assert [one.repeat for one in trials] == [0] * 8 + [1] * 8
    assert trials[0].cell != trials[8].cell


@pytest.mark.parametrize(("scaling", "samples"), [("weak", 128), ("strong", 32)])
def test_weak_scaling_gives_each_rank_the_batch(scaling: str, samples: int) -> None:
    assert cell(scaling=scaling, world=4).global_batch == samples


@pytest.mark.parametrize(
    ("text", "found"),
    [("none", ["none"]), ("200mbit,1gbit,200Mbit/s", ["200mbit", "1gbit"]), ("1.5Gbit/s", ["1.5gbit"])],
)
def test_links_have_one_spelling(text: str, found: list[str]) -> None:
    assert plan.links(text) == found


def test_cluster_is_measured_in_a_bench_of_its_own() -> None:
    assert plan.links("cluster") == ["cluster"]
    with pytest.raises(InputError, match=r"--link none,cluster: .*give cluster a bench and a folder"):
        plan.links("none,cluster")


def test_rate_of_a_link() -> None:
    assert (plan.rate("200mbit"), plan.rate("1.5gbit"), plan.rate("64kbit")) == (2e8, 1.5e9, 64e3)


@pytest.mark.parametrize("text", ["fast", "200", "0mbit", "", "200mbyte"])
def test_link_that_is_no_rate_is_named(text: str) -> None:
    with pytest.raises(InputError, match=r"--link .*: write none, a rate such as 200mbit or 1gbit, or cluster"):
        plan.links(text)


def test_grid_that_can_not_be_shared_is_rejected() -> None:
    with pytest.raises(InputError, match="--world 3: --link 1gbit joins two nodes"):
        grid(worlds=[1, 3], links=["1gbit"]).check()
    with pytest.raises(InputError, match="--batch 6: with --scaling strong all ranks share it evenly"):
        grid(worlds=[4], batches=[6], scalings=["strong"]).check()
    grid(worlds=[3], batches=[6], scalings=["weak", "strong"]).check()


FACTS = {"strategies": ["ddp", "fsdp"], "arms": {"torchrun-ddp": True, "lightning": False}}


@pytest.mark.parametrize(
    ("strategies", "others", "run", "absent"),
    [
        ("ddp,fsdp", "ours", ["ddp", "fsdp"], []),
        ("ddp", "all", ["ddp", "torchrun-ddp"], ["lightning"]),
        ("ddp,ddp", "torchrun-ddp", ["ddp", "torchrun-ddp"], []),
        ("", "torchrun-ddp", ["torchrun-ddp"], []),
    ],
)
def test_arms_are_those_of_two_flags(strategies: str, others: str, run: list[str], absent: list[str]) -> None:
    found = plan.arms(strategies, others, FACTS)
    assert (found.run, found.absent) == (run, absent)


@pytest.mark.parametrize(
    ("strategies", "others", "message"),
    [
        ("dpp", "all", "--strategy dpp: write one or more of ddp, fsdp"),
        ("ddp", "horovod", "--arm horovod: write all, ours, or one or more of torchrun-ddp, lightning"),
        ("ddp", "lightning", "--arm lightning: lightning is not installed for the ranks' interpreter"),
        ("", "ours", "--strategy: there is no arm left"),
    ],
)
def test_arm_that_can_not_run_is_named(strategies: str, others: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan.arms(strategies, others, FACTS)


TWO_CORES = [(0, "a"), (1, "a"), (2, "b"), (3, "b")]


@pytest.mark.parametrize(
    ("quota", "shares"),
    [(math.inf, {2: OWN, 4: THREAD, 5: SHARED}), (1.5, {1: OWN, 2: SHARED}), (3.0, {2: OWN, 3: THREAD, 4: SHARED})],
)
def test_ranks_beyond_the_cores_are_known(quota: float, shares: dict[int, str]) -> None:
    cores = Cores(TWO_CORES, quota)
    assert {ranks: cores.share(ranks) for ranks in shares} == shares
    assert cores.of_ranks(5) == [0, 2, 1, 3, 0]


def test_ranks_of_a_trial_have_the_environment_of_torchrun() -> None:
    found = starts(cell(world=2), OPTIONS, nodes=(), cores=[4, 5], port=1, out=Path("t.json"))
    assert [one.environment["RANK"] for one in found] == ["0", "1"]
    assert {one.environment["WORLD_SIZE"] for one in found} == {"2"}
    assert {one.environment["MASTER_ADDR"] for one in found} == {"127.0.0.1"}
    assert found[0].command[:4] == ["python3", "-m", "dtj_trainer.measure", "bench"]
    assert option(found[1].command, "--cores") == "4,5"
    assert option(found[1].command, "--batch") == "64"


def option(command: Sequence[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_ranks_are_divided_among_the_nodes_of_a_link() -> None:
    found = starts(cell(world=4), OPTIONS, nodes=("x", "y"), cores=[0, 1, 2, 3], port=1, out=Path("t.json"))
    assert [one.command[3] for one in found] == ["x", "x", "y", "y"]
    assert [one.environment["GROUP_RANK"] for one in found] == ["0", "0", "1", "1"]
    assert [one.environment["LOCAL_RANK"] for one in found] == ["0", "1", "0", "1"]
    assert [option(one.command, "--cores") for one in found] == ["0,1", "0,1", "2,3", "2,3"]
    (alone,) = starts(cell(world=1), OPTIONS, nodes=("x", "y"), cores=[0], port=1, out=Path("t.json"))
    assert alone.command[3] == "x"


def test_torchrun_starts_the_ranks_of_its_arm_on_each_node() -> None:
    found = starts(
        cell(world=4, arm="torchrun-ddp"), OPTIONS, nodes=("x", "y"), cores=[0, 1, 2, 3], port=7, out=Path("t.json")
    )
    assert [option(one.command, "--node-rank") for one in found] == ["0", "1"]
    assert {option(one.command, "--nproc-per-node") for one in found} == {"2"}
    assert all("RANK" not in one.environment for one in found)


def test_row_has_the_median_and_quartiles_of_its_trials() -> None:
    one = cell()
    (row,) = rows([one], [record(one, seconds) for seconds in (0.05, 0.01, 0.02, 0.03, 0.04)])
    assert row.step is not None
    assert (row.step.low, row.step.median, row.step.high) == (0.02, 0.03, 0.04)
    assert (row.step.least, row.step.most) == (0.01, 0.05)
    assert (row.trials, row.failures) == (5, 0)


def test_failed_trial_counts_as_failure_and_in_no_figure() -> None:
    one = cell()
    failed = record(one, 99.0, outcome="timeout", reason="not done after 60 s")
    (row,) = rows([one], [record(one, 0.01), failed])
    assert row.step is not None
    assert (row.trials, row.failures, row.step.most) == (1, 1, 0.01)
    assert any("1 failed: not done after 60 s" in note for note in notes([row], [], SETUP))
    (empty,) = rows([one], [failed])
    assert (empty.step, empty.efficiency, empty.failures) == (None, None, 1)
    assert "ddp" in table([empty], [])


@pytest.mark.parametrize(
    ("scaling", "seconds", "found"),
    [
        ("weak", {1: 0.1, 2: 0.1, 4: 0.2}, {1: 1.0, 2: 1.0, 4: 0.5}),
        ("strong", {1: 0.4, 2: 0.2, 4: 0.2}, {1: 1.0, 2: 1.0, 4: 0.5}),
        ("weak", {2: 0.1, 4: 0.125}, {2: 1.0, 4: 0.8}),
        ("strong", {2: 0.2, 4: 0.125}, {2: 1.0, 4: 0.8}),
    ],
)
def test_efficiency_is_relative_to_the_smallest_world(
    scaling: str, seconds: dict[int, float], found: dict[int, float]
) -> None:
    cells = [cell(scaling=scaling, world=world) for world in seconds]
    other = cell(scaling=scaling, world=1, arm="other")
    measured = rows([*cells, other], [record(one, seconds[one.world]) for one in cells] + [record(other, 9.0)])
    assert {row.cell.world: row.efficiency for row in measured[:-1]} == pytest.approx(found)
    assert {row.base for row in measured[:-1]} == {min(seconds)}


def measured(*changes: dict[str, Any]) -> list[Row]:
    cells = [cell(world=2, arm=f"arm{at}") for at in range(len(changes))]
    return rows(cells, [record(one, 0.01, **change) for one, change in zip(cells, changes, strict=True)])


def test_arm_with_another_loss_does_other_work() -> None:
    (sentence,) = other_work(measured({"loss": 1.0}, {"loss": 1.0002}, {"loss": 1.2}))
    assert "arm2, 2 ranks" in sentence
    assert "arm0 has 1: it does not do the same work" in sentence
    assert other_work(measured({"loss": 1.0}, {"loss": math.nan})) != []


@pytest.mark.parametrize(
    ("share", "text"), [(SHARED, "their rows measure the cores"), (THREAD, "share a core by its hardware threads")]
)
def test_ranks_that_share_cores_are_warned_about(share: str, text: str) -> None:
    warnings = [note for note in notes(measured({"cores": share}), [], SETUP) if note.startswith("WARNING")]
    assert len(warnings) == 1
    assert text in warnings[0]
    assert not any(note.startswith("WARNING") for note in notes(measured({}), [], SETUP))


def test_kernel_without_bbr_is_warned_about() -> None:
    assert any("cubic" in note for note in notes(measured({"tcp": "cubic"}), [], SETUP))
    assert not any(note.startswith("WARNING") for note in notes(measured({"tcp": "bbr"}), [], SETUP))


def test_absent_library_has_a_row() -> None:
    assert table(measured({}), ["lightning"]).splitlines()[-1].split() == ["-"] * 4 + ["lightning", "not", "installed"]


def test_json_and_csv_have_the_figures_of_the_rows() -> None:
    found = measured({}, {"cores": SHARED, "outcome": "failed", "reason": "no, memory"})
    read = json.loads(json.dumps(document(found, ["lightning"], SETUP)))
    assert read["notInstalled"] == ["lightning"]
    assert [(row["arm"], row["trials"], row["failures"]) for row in read["rows"]] == [("arm0", 1, 0), ("arm1", 0, 1)]
    assert read["rows"][0]["step"]["median"] == 0.01
    first, second = csv.DictReader(io.StringIO(as_csv(found)))
    assert (first["step_seconds"], first["efficiency"], first["global_batch"]) == ("0.01", "1.0", "64")
    assert (second["step_seconds"], second["cores"], second["reason"]) == ("", SHARED, "no, memory")
