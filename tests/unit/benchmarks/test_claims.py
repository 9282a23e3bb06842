"""The page of claims is what the measurements give."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest

from benchmarks.claims import CLAIMS, PAGE, SAME_LOSS, rendered, row, verdict


def test_page_is_written_from_the_measurements() -> None:
    assert PAGE.read_text() == rendered(), "run python -m benchmarks.claims"


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.table}: {claim.arm}")
def test_claim_names_a_table_of_its_benchmark(claim: object) -> None:
    tables = importlib.import_module(f"benchmarks.{claim.page}.results").TABLES  # type: ignore[attr-defined]
    assert claim.table in tables  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("claimed", "measured", "expected"),
    [(2.0, 2.1, "beaten"), (2.0, 2.09, "reached"), (2.0, 1.9, "reached"), (2.0, 1.89, "not reached")],
)
def test_claim_is_beaten_or_reached_within_five_per_cent(claimed: float, measured: float, expected: str) -> None:
    assert verdict(replace(CLAIMS[0], claimed=claimed), measured) == expected


def test_loss_may_be_one_per_cent_worse() -> None:
    claim = replace(CLAIMS[0], claimed=1.0, reached=SAME_LOSS)
    assert [verdict(claim, ratio) for ratio in (0.991, 0.989)] == ["reached", "not reached"]


def test_claim_without_a_measurement_is_shown_as_such() -> None:
    assert "| not measured yet |" in row(replace(CLAIMS[0], arm="no such arm"))
