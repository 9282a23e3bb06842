"""The curve of loss against bytes has each method that both tables have."""

from __future__ import annotations

from pathlib import Path

from benchmarks.communication.plot import BYTES, LOSS, draw, points

RESULTS = {
    BYTES: {"rows": {"torch DDP": [50.0, 52.0, 51.0], "topk, 1 %": [0.5], "int8": [12.0]}},
    LOSS: {"rows": {"none": [2.0, 4.0], "topk, 1 %": [2.2, 4.4], "onebit": [3.0, 6.0]}},
}


def test_methods_of_both_tables_are_points_and_plain_gradients_are_those_of_ddp() -> None:
    found = points(RESULTS)
    assert found == {"none": (51.0, 1.0), "topk, 1 %": (0.5, 1.1)}


def test_plot_is_drawn_and_nothing_is_drawn_of_nothing(tmp_path: Path) -> None:
    draw(RESULTS, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert points({}) == {}
