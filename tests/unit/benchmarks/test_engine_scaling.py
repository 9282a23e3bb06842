"""The scaling of engines: what the model makes of one rank and two, and what the table and the claims judge by it."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import claims
from benchmarks.engines import arms, scaling

CLAIM = claims.EngineScaling(text="8 ranks", claimed=7.8, arm="horovod", ranks=8)


def reduces(two: float = 0.0, four: float = 0.0) -> dict[str, dict[str, float]]:
    """Returns all-reduces of nearly no bytes that take so long with two and four ranks."""
    much = int(scaling.MUCH) / 1e9
    return {
        "2": {scaling.LITTLE: two, scaling.MUCH: two + much},
        "4": {scaling.LITTLE: four, scaling.MUCH: four + much},
    }


def trial(two: float, four: float = 0.2, number: int = 0) -> dict[str, Any]:
    """Returns a trial whose step of one rank takes 0.1 s, and whose link carries 1 GB a second without latency."""
    return {
        "arm": "horovod", "trial": number, "load": 0.5, "seconds": {"1": 0.1, "2": two, "4": four},
        "reduce": reduces(), "sent": {"none": 2e6, "fp16": 1e6},
    }  # fmt: skip


def test_model_adds_what_a_link_does_not_hide_behind_the_backward_pass() -> None:
    last = scaling.GRADIENT_BYTES / 5  # 2 MiB buckets: the last one has nothing to hide behind
    assert scaling.modelled(trial(two=0.1), 2) == pytest.approx(0.1 + last / 1e9)
    assert scaling.modelled(trial(two=0.1), 8) == pytest.approx(0.1 + last / 1e9 * 2 * 7 / 8)


def test_step_of_two_ranks_beyond_the_model_is_in_proportion_to_the_bytes() -> None:
    hidden = scaling.modelled(trial(two=0.1), 2)
    assert scaling.modelled(trial(two=hidden + 0.01), 2) == pytest.approx(hidden + 0.01)
    fast, slow = (scaling.modelled(trial(two=hidden + extra), 8) for extra in (0.0, 0.01))
    assert slow - fast == pytest.approx(0.01 * 2 * 7 / 8)


@pytest.mark.parametrize(
    ("little", "expected"),
    [
        ((0.0, 0.0), 0.0),
        ((0.0002, 0.0002), 0.0002),
        ((0.0002, 0.0004), 0.0001 + 14 * 0.00005),
        ((0.0002, 0.0018), 14 * 0.0001),
        ((0.0002, 0.0), 0.0002),
    ],
    ids=["none", "all of it once", "both", "at most all of it", "four ranks were faster"],
)
def test_time_that_grows_with_the_ranks_counts_for_each_message(little: tuple[float, float], expected: float) -> None:
    """Of the last bucket, which nothing hides: the bandwidth's part is that of a link without latency."""
    bare = scaling.modelled(trial(two=0.0), 8)
    assert scaling.modelled(trial(two=0.0) | {"reduce": reduces(*little)}, 8) == pytest.approx(bare + expected)


def test_speedups_are_medians_of_trials_and_modelled_where_nothing_was_started() -> None:
    found = [trial(0.16, number=0), trial(0.2, number=1), trial(0.125, number=2)]
    rows = {row.ranks: row for row in scaling.speedups(found, "horovod")}
    assert list(rows) == list(scaling.RANKS)
    assert rows[2].measured == pytest.approx(1.25)
    assert rows[2].quartiles == (pytest.approx(1.0), pytest.approx(1.6))
    assert rows[2].modelled == pytest.approx(1.25)
    assert rows[4].measured == pytest.approx(2.0)
    assert (rows[8].measured, rows[8].quartiles) == (None, None)
    assert not list(scaling.speedups(found, "ray"))


def test_table_has_each_claim_beside_its_model_and_the_bytes_of_fp16() -> None:
    text = scaling.render("here", [trial(0.125)])
    assert "| `horovod` | 2 | 1.60x |  | 1.60x |  |" in text
    (line,) = [line for line in text.splitlines() if line.startswith("| `horovod` | 8 |  |  |")]
    assert line.endswith("x | 7.8x |")
    assert "2.00x fewer bytes" in text


@pytest.mark.parametrize(("two", "verdict"), [(0.1, "reached"), (0.2, "not reached")])
def test_verdict_is_of_the_model_and_names_what_was_measured(
    two: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "engine_trials", lambda: [trial(two)])
    line = claims.row(CLAIM)
    assert f"**{verdict}** ([scaling](../benchmarks/engines/README.md)): modelled" in line
    (four,) = [row.modelled for row in scaling.speedups([trial(two)], "horovod") if row.ranks == 4]
    assert f"{0.2 / two:.2f}x with 2 ranks, 2.00x with 4 ranks (modelled {four:.2f}x) |" in line


def test_claim_about_bytes_is_of_both_runs_and_unknown_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = next(claim for claim in claims.CLAIMS if isinstance(claim, claims.HorovodBytes))
    monkeypatch.setattr(claims, "engine_trials", lambda: [trial(0.1)])
    assert claim.measured() == 2.0
    monkeypatch.setattr(claims, "engine_trials", list)
    assert claim.measured() is None


def test_each_engine_has_a_script_that_is_timed() -> None:
    assert all((arms.HERE / f"scripts/scaling_{engine}.py").exists() for engine in scaling.ENGINES)
    assert {engine for engine, _ in scaling.CLAIMED} == set(scaling.ENGINES)
