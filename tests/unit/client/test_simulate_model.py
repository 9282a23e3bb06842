"""The model of `dtj simulate` against values by hand: collectives, overlap, stragglers, checkpoints, goodput."""

from __future__ import annotations

import math

import pytest

from dtj.simulate import collectives, goodput
from dtj.simulate.goodput import Failures
from dtj.simulate.model import Row, Setup, rows, step
from dtj.simulate.network import Link, Network
from dtj.simulate.overlap import data_parallel, sharded
from dtj.simulate.profile import Piece, Profile, even
from dtj.simulate.stragglers import expected_maximum

NET = Link(0.001, 100.0)
"""1 ms and 100 bytes per second."""
FAST = Link(0.0001, 10_000.0)


def network(**fields: object) -> Network:
    """Returns a network whose links are all NET, but for `fields`."""
    return Network(**{"node": NET, "local": NET, "rack": NET} | fields)  # type: ignore[arg-type]


def profile(**fields: object) -> Profile:
    """Returns a step of 0.1 + 0.2 + 0.6 + 0.1 s with two buckets of 10 bytes."""
    known = {"samples": 4.0, "data": 0.1, "forward": 0.2, "backward": 0.6, "optimizer": 0.1, "bucket_bytes": 10.0}
    return Profile(**known | {"gradients": (Piece(10, 0.3), Piece(10, 0.6))} | fields)  # type: ignore[arg-type]


def setup(**fields: object) -> Setup:
    return Setup(**{"profile": profile(), "network": network()} | fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("ranks", [2, 3, 8, 4096])
def test_ring_all_reduce_is_the_textbook_formula(ranks: int) -> None:
    expected = 2 * (ranks - 1) / ranks * 1000 / 100 + 2 * (ranks - 1) * 0.001
    assert collectives.all_reduce(1000, ranks, network()) == pytest.approx(expected)


def test_ring_of_one_rank_sends_nothing() -> None:
    assert collectives.all_reduce(1000, 1, network()) == 0
    assert collectives.hierarchical(1000, 1, network()) == 0


def test_reduce_scatter_is_half_of_an_all_reduce() -> None:
    assert collectives.shard(1000, 8, network()) == pytest.approx(7 / 8 * 10 + 7 * 0.001)


def test_ring_goes_at_the_pace_of_its_slowest_link() -> None:
    """Has 4 ranks on 2 nodes: rounds of 250 bytes, of which the network takes 2.5 s + 1 ms."""
    assert collectives.all_reduce(1000, 4, network(local=FAST, ranks_per_node=2)) == pytest.approx(6 * 2.501)
    assert collectives.all_reduce(1000, 2, network(local=FAST, ranks_per_node=2)) == pytest.approx(2 * 0.0501)


def test_interleaved_ranks_share_the_nic_of_their_node() -> None:
    scattered = network(local=FAST, ranks_per_node=2, placement="interleaved")
    assert collectives.all_reduce(1000, 4, scattered) == pytest.approx(6 * (0.001 + 250 / 50))
    assert collectives.all_reduce(1000, 2, scattered) == pytest.approx(2 * 0.0501)


def test_oversubscription_counts_only_between_racks() -> None:
    racks = network(nodes_per_rack=2, oversubscription=4.0)
    assert collectives.all_reduce(1000, 2, racks) == pytest.approx(10.002)
    assert collectives.all_reduce(1000, 4, racks) == pytest.approx(6 * (0.001 + 250 / 25))


def test_link_between_racks_has_its_own_latency() -> None:
    racks = network(nodes_per_rack=1, rack=Link(0.5, 100.0))
    assert collectives.all_reduce(1000, 2, racks) == pytest.approx(2 * (0.5 + 5))


def test_hierarchy_sends_each_byte_once_over_the_network() -> None:
    """Has 8 ranks on 2 nodes: 2 * 3 rounds of 250 bytes within, 2 rounds of 500 bytes between."""
    two_levels = network(local=FAST, ranks_per_node=4)
    assert collectives.hierarchical(1000, 8, two_levels) == pytest.approx(6 * 0.0251 + 2 * 5.001)
    assert collectives.hierarchical(1000, 8, two_levels) < collectives.all_reduce(1000, 8, two_levels)


def test_backward_hides_all_buckets_but_the_last() -> None:
    found = data_parallel([Piece(10, 0.3), Piece(10, 0.6)], 0.6, lambda size: size / 100)
    assert (found.seconds, found.busy, found.exposed) == pytest.approx((0.7, 0.2, 0.1))


def test_backward_that_covers_all_communication_exposes_none() -> None:
    found = data_parallel([Piece(10, 0.1), Piece(10, 0.2)], 0.6, lambda size: size / 100)
    assert (found.seconds, found.exposed) == pytest.approx((0.6, 0.0))


def test_buckets_queue_on_a_slow_link() -> None:
    found = data_parallel([Piece(10, 0.3), Piece(10, 0.6)], 0.6, lambda size: size / 10)
    assert found.seconds == pytest.approx(0.3 + 1 + 1)


def test_without_overlap_all_communication_is_exposed() -> None:
    found = data_parallel([Piece(10, 0.1), Piece(10, 0.2)], 0.6, lambda size: size / 100, overlap=False)
    assert found.exposed == pytest.approx(0.2)


def test_compression_delays_later_gradients_and_sends_fewer_bytes() -> None:
    """Ends the backward at 0.8; the last bucket is ready then and takes 0.01."""
    buckets = [Piece(10, 0.3), Piece(10, 0.6)]
    found = data_parallel(buckets, 0.6, lambda size: size / 100, factor=10, compression_seconds=0.2)
    assert (found.seconds, found.exposed, found.busy) == pytest.approx((0.81, 0.21, 0.02))


def test_sharded_step_waits_for_the_first_gather_and_the_last_scatter() -> None:
    """Hides the rest: forward 0.1 + (0.1 + 0.1), then backward 0.1 + (0.3 + 0.3) + 0.1."""
    buckets = [Piece(10, 0.3), Piece(10, 0.6)]
    found = sharded(buckets, 0.2, 0.6, lambda size: size / 100)
    assert found.seconds == pytest.approx(0.1 + 0.2 + 0.1 + 0.6 + 0.1)
    assert found.busy == pytest.approx(0.6)


def test_sharded_step_on_a_slow_link_takes_as_long_as_its_link() -> None:
    found = sharded([Piece(10, 0.3), Piece(10, 0.6)], 0.2, 0.6, lambda size: size)
    assert found.busy == pytest.approx(60)
    assert 60 <= found.seconds < 61


@pytest.mark.parametrize(
    ("draws", "expected"),
    [
        (1, 0.0),
        (2, 1 / math.sqrt(math.pi)),
        (3, 1.5 / math.sqrt(math.pi)),
        (4, 1.02938),
        (10, 1.53875),
        (100, 2.50759),
        (1000, 3.24144),
    ],
)
def test_expected_maximum_agrees_with_published_tables(draws: int, expected: float) -> None:
    assert expected_maximum(draws) == pytest.approx(expected, abs=1e-4)


def test_expected_maximum_of_very_many_draws_still_rises() -> None:
    assert 4 < expected_maximum(100_000) < expected_maximum(10_000_000) < 6


def test_young_and_daly_give_the_intervals_by_hand() -> None:
    """Has d = 5 s, M = 1000 s: sqrt(10,000) = 100; 100 * (1 + 0.05 / 3 + 0.0025 / 9) - 5."""
    assert goodput.young(5, 1000) == 100
    assert goodput.daly(5, 1000) == pytest.approx(100 * (1 + 0.05 / 3 + 0.0025 / 9) - 5)
    assert goodput.daly(2000, 1000) == 1000


@pytest.mark.parametrize(("mtbf_hours", "minutes"), [(24, 117), (6, 57), (0.25, 9.1)])
def test_daly_gives_the_intervals_of_his_figures(mtbf_hours: float, minutes: float) -> None:
    """Has the values of figures 3 to 5 of the paper, for a dump of 5 minutes."""
    assert goodput.daly(5, 60 * mtbf_hours) == pytest.approx(minutes, abs=0.5 if minutes > 10 else 0.05)


def test_goodput_is_best_at_dalys_interval() -> None:
    at = [goodput.goodput(factor * goodput.daly(5, 1000), 5, 30, 1000) for factor in (0.8, 1.0, 1.25)]
    assert max(at) == at[1]


def test_goodput_without_failures_loses_the_checkpoints_only() -> None:
    assert goodput.goodput(95, 5, 30, 1e12) == pytest.approx(0.95)


def test_goodput_is_dalys_wall_clock_time_by_hand() -> None:
    """Has M = 100, R = 10, t = 20, d = 5: 20 / (100 e^0.1 (e^0.25 - 1))."""
    assert goodput.goodput(20, 5, 10, 100) == pytest.approx(20 / (100 * 1.1051709 * 0.2840254))


def test_group_that_fails_all_the_time_has_no_goodput() -> None:
    assert goodput.goodput(1.0, 1e6, 1.0, 1.0) == 0.0


def test_group_fails_as_often_as_all_its_nodes_together() -> None:
    failures = Failures(node_mtbf=100_000, recovery=30, checkpoint=5)
    assert goodput.of_group(failures, 100) == (
        goodput.goodput(goodput.daly(5, 1000), 5, 30, 1000),
        goodput.daly(5, 1000),
    )


def test_bucket_is_closed_by_the_gradient_that_fills_it() -> None:
    own = profile(gradients=(Piece(4, 0.1), Piece(7, 0.2), Piece(3, 0.3), Piece(6, 0.4), Piece(1, 0.5)))
    assert own.buckets() == [Piece(11, 0.2), Piece(10, 0.5)]


def test_gradients_of_unknown_parameters_come_at_an_even_pace() -> None:
    found = even(25, 10, 0.6)
    assert [piece.size for piece in found] == [25 / 3] * 3
    assert [piece.ready for piece in found] == pytest.approx([0.2, 0.4, 0.6])


def test_step_is_compute_plus_straggling_plus_what_is_exposed() -> None:
    """Has an all-reduce of 10 bytes on 2 ranks: 0.1 + 0.002 s, twice, of which the first is hidden."""
    found = step(setup(profile=profile(spread=0.01)), 2)
    assert found.compute == 1.0
    assert found.straggling == pytest.approx(0.01 / math.sqrt(math.pi))
    assert (found.exposed, found.busy) == pytest.approx((0.102, 0.204))


def test_only_the_last_micro_batch_hides_communication() -> None:
    gradients = (Piece(10, 0.1), Piece(10, 0.2))
    found = step(setup(profile=profile(micro_batches=3, gradients=gradients)), 2)
    assert found.exposed == pytest.approx(0.1 + 2 * 0.102 - 0.2)


def by_ranks(found: list[Row], source: str) -> dict[int, Row]:
    return {row.ranks: row for row in found if row.source == source}


def test_weak_efficiency_is_one_where_communication_is_hidden() -> None:
    hidden = profile(gradients=(Piece(10, 0.1), Piece(10, 0.2)))
    found = by_ranks(rows(setup(profile=hidden), [1, 2]), "modelled")
    assert found[2].weak == 1.0
    assert found[2].samples_per_second == pytest.approx(8.0)


def test_strong_efficiency_divides_the_batch_over_the_ranks() -> None:
    """Has 4 samples on 2 ranks: half of data, forward and backward, all of the optimizer, two exposed all-reduces."""
    found = by_ranks(rows(setup(), [1, 2, 8]), "modelled")
    assert found[1].strong == 1.0
    assert found[2].strong == pytest.approx(1.0 / (2 * (0.45 + 0.1 + 0.102)))
    assert found[8].strong is None  # less than a sample a rank


def test_rows_name_their_source() -> None:
    known = setup(profile=profile(measured="today"))
    assert [(row.ranks, row.source) for row in rows(known, [1, 2, 4], {2: 1.3})] == [
        (1, "measured"),
        (2, "measured"),
        (2, "modelled"),
        (4, "modelled"),
    ]
    assert [row.source for row in rows(setup(), [1])] == ["modelled"]
    assert by_ranks(rows(known, [2], {2: 1.3}), "measured")[2].samples_per_second == pytest.approx(8 / 1.3)
