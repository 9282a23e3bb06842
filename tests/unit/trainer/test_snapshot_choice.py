"""A restarted group takes the newest step that all ranks have, of one line, and never an abandoned one."""

from __future__ import annotations

import numpy as np
import pytest

from dtj_trainer.snapshots.choice import Choice, Found, Volume, choose
from dtj_trainer.snapshots.interval import Interval, steps_between
from dtj_trainer.snapshots.partner import Size, lacking, pair, sent_whole
from dtj_trainer.snapshots.reshard import is_covered

NO_CHECKPOINT = Volume()


def found(
    pod: int,
    owner: int,
    step: int,
    attempt: int = 1,
    data: str = "same",
    whole: bool = True,
    started: int = 0,
    world: int = 2,
    layout: str = "fits",
    shard: str = "0/1",
    model: str = "",
) -> Found:
    return Found(
        pod=pod, name=f"{attempt}-{owner}-{step}-{pod}", owner=owner, attempt=attempt, started=started, step=step,
        layout=layout, world_size=world, whole_layout=model, shard=int(shard[0]), shards=int(shard[2]),
        manifest_bytes=1, blob_bytes=1, private_bytes=1, data_bytes=1, private_digest=f"p{owner}",
        data_digest=data, has_data=whole,
    )  # fmt: skip


def chosen(*snapshots: Found, attempt: int = 4, volume: Volume = NO_CHECKPOINT, pods: tuple[int, ...] = (0, 1)) -> str:
    """Returns `attempt@step source` of what is chosen; "" if nothing is."""
    choice: Choice | None = choose(snapshots, pods=pods, layouts=["fits"] * len(pods), attempt=attempt, volume=volume)
    return f"{choice.line[0]}@{choice.step} {choice.source}" if choice else ""


BOTH = (found(0, 0, 5), found(1, 1, 5))
CASES = {
    "all have it": (BOTH, {}, "1@5 memory"),
    "one was killed while it wrote step 6": ((*BOTH, found(0, 0, 6)), {}, "1@5 memory"),
    "no step in common": ((found(0, 0, 6), found(1, 1, 5)), {}, ""),
    "a lost pod, a replica, no copy of what is private": ((found(0, 0, 5),), {}, ""),
    "a lost pod, a replica": ((found(0, 0, 5), found(0, 1, 5, whole=False)), {}, "1@5 replica"),
    "a lost pod whose data nobody else had": (
        (found(0, 0, 5, data="a"), found(0, 1, 5, data="b", whole=False)), {}, "",
    ),
    "a lost pod, a partner's copy": ((found(0, 0, 5, data="a"), found(0, 1, 5, data="b")), {}, "1@5 partner"),
    "a newer checkpoint": (BOTH, {"volume": Volume(step=6, attempt=1)}, ""),
    "a checkpoint of the same step": (BOTH, {"volume": Volume(step=5, attempt=1)}, "1@5 memory"),
    "an older checkpoint of a later attempt: the line was abandoned": (
        BOTH, {"volume": Volume(step=3, attempt=2)}, "",
    ),
    "a newer line that is shorter": (
        (*BOTH, found(0, 0, 3, attempt=2, started=2), found(1, 1, 3, attempt=2, started=2)), {}, "2@3 memory",
    ),
    "a pod that comes back with an abandoned line": (
        (found(0, 0, 3, attempt=2), found(0, 1, 3, attempt=2, whole=False), found(1, 1, 5)), {}, "2@3 replica",
    ),
    "two lines are never mixed": ((found(0, 0, 5, attempt=2), found(1, 1, 5, attempt=1)), {}, ""),
    "nor two beginnings": ((found(0, 0, 5, started=1), found(1, 1, 5, started=2)), {}, ""),
    "which three attempts have not replaced: the state may end them": (
        BOTH, {"attempt": 5, "volume": Volume(step=2, attempt=1)}, "",
    ),
    "which three attempts have not replaced, without a checkpoint": (BOTH, {"attempt": 5}, "1@5 memory"),
    "a pod less, unsharded": ((found(0, 0, 5, world=3), found(1, 2, 5, world=3)), {}, "1@5 memory"),
    "a pod more, unsharded": ((found(0, 0, 5, world=1),), {}, "1@5 replica"),
    "a pod less, the newer step on one rank alone": (
        (found(0, 0, 5, world=3), found(1, 1, 6, world=3)), {}, "1@6 replica",
    ),
    "a pod less, a part that each rank has for itself": (
        (found(0, 0, 5, world=3), found(1, 1, 5, world=3, data="b")), {}, "",
    ),
    "a pod less, known from a partner's copy alone": ((found(0, 2, 5, world=3, whole=False),), {}, ""),
    "a pod less, other shards": (
        (found(0, 0, 5, world=3, layout="1 of 3"), found(1, 1, 5, world=3, layout="2 of 3")), {}, "",
    ),
    "a pod less, a newer line of the fewer": (
        (found(0, 0, 9, world=3), found(0, 0, 7, attempt=2), found(1, 1, 7, attempt=2)), {}, "2@7 memory",
    ),
    "a spare takes the place of the middle pod, and ranks move": (
        (found(0, 0, 5, world=3), found(1, 2, 5, world=3), found(1, 1, 5, world=3, whole=False)),
        {"pods": (0, 1, 2)}, "1@5 replica",
    ),
    "of this very attempt": (BOTH, {"attempt": 1}, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_choice_is_the_newest_that_all_ranks_can_load(name: str) -> None:
    snapshots, more, wanted = CASES[name]
    assert chosen(*snapshots, **more) == wanted  # type: ignore[arg-type]


def test_snapshot_of_another_layout_is_not_taken() -> None:
    assert choose(BOTH, pods=[0, 1], layouts=["fits", "other"], attempt=9, volume=NO_CHECKPOINT) is None


def test_resized_rank_takes_the_shards_that_it_holds_and_the_lowest_private_part() -> None:
    """Two replicas of two shards become one."""
    old = [found(rank, rank, 5, world=4, layout=f"shard {rank % 2}", data=f"shard {rank % 2}") for rank in (1, 2, 3)]
    choice = choose(old, pods=[2, 3], layouts=["shard 0", "shard 1"], attempt=9, volume=NO_CHECKPOINT)
    assert choice is not None
    assert [(p.private.owner, p.data.owner, p.data.pod) for p in choice.pieces] == [(2, 2, 2), (1, 3, 3)]
    assert choice.taken_by == 4
    assert choose(old[::2], pods=[2, 3], layouts=["shard 0", "shard 1"], attempt=9, volume=NO_CHECKPOINT) is None


def piece(pod: int, number: int, step: int = 5, data: str = "", whole: bool = True, model: str = "model") -> Found:
    """Returns shard `number` of four."""
    data = data or f"data {number}"
    layout, shard = f"shard {number} of 4", f"{number}/4"
    return found(pod, number, step, data=data, whole=whole, world=4, layout=layout, shard=shard, model=model)


UPPER_HALF_LOST = (piece(0, 0), piece(0, 2), piece(1, 1), piece(1, 3))
DIVIDED = {
    "both halves' pods are there": ((piece(0, 0), piece(1, 1), piece(2, 2), piece(3, 3)), 5),
    "the upper half is lost": (UPPER_HALF_LOST, 5),
    "a shard is nowhere": (UPPER_HALF_LOST[:3], None),
    "a copy has only the private part": ((*UPPER_HALF_LOST[:3], piece(1, 3, whole=False)), None),
    "a newer step lacks a shard": ((*UPPER_HALF_LOST, piece(0, 0, 6), piece(0, 2, 6), piece(1, 1, 6)), 5),
    "two copies of a shard differ": ((*UPPER_HALF_LOST, piece(1, 2, data="other")), None),
    "it is another model": (tuple(piece(f.pod, f.owner, model="other") for f in UPPER_HALF_LOST), None),
    "the shards are no runs": (tuple(piece(f.pod, f.owner, model="") for f in UPPER_HALF_LOST), None),
}


@pytest.mark.parametrize("name", DIVIDED)
def test_other_shards_are_divided_if_all_of_the_old_world_are_there(name: str) -> None:
    snapshots, step = DIVIDED[name]
    for fewer in ((0, 1), (0, 1, 2)):
        layouts = [f"of {len(fewer)}"] * len(fewer)
        choice = choose(snapshots, pods=fewer, layouts=layouts, attempt=4, volume=NO_CHECKPOINT, whole_layout="model")
        assert (choice.step if choice else None) == step
        if choice:
            assert [f.owner for f in choice.shards] == [0, 1, 2, 3]
            assert (choice.source, choice.taken_by, choice.pieces) == ("partner", 4, ())
            assert choice.first is not None
            assert choice.first.owner == 0


def test_shards_are_not_divided_where_the_new_ranks_disagree() -> None:
    assert choose(UPPER_HALF_LOST, pods=(0, 1), layouts=["a", "b"], attempt=4, volume=NO_CHECKPOINT) is None


@pytest.mark.parametrize(
    ("runs", "covered"),
    [
        ([(0, 4), (4, 8)], True),
        ([(4, 8), (0, 4), (8, 8)], True),
        ([(0, 4), (5, 8)], False),
        ([(0, 5), (4, 8)], False),
        ([(0, 4)], False),
        ([(-1, 8), (-1, 8)], True),
        ([(-1, 8), (0, 8)], False),
    ],
)
def test_shards_cover_a_tensor_only_if_each_element_is_there_once(runs: list[tuple[int, int]], covered: bool) -> None:
    assert is_covered(np.array(runs), 8) is covered


def test_data_is_taken_from_a_mate_in_the_pod_before_another_pod() -> None:
    everything = (found(0, 0, 5, whole=False, world=3), found(0, 1, 5, world=3), found(1, 2, 5, world=3))
    choice = choose(everything, pods=[0, 0, 1], layouts=["fits"] * 3, attempt=9, volume=NO_CHECKPOINT)
    assert choice is not None
    assert choice.pieces[0].data.owner == 1


@pytest.mark.parametrize(
    ("cost", "step", "steps"), [(0.001, 1.0, 1), (0.015, 1.0, 1), (0.016, 1.0, 2), (0.5, 0.1, 334), (0.01, 0.01, 67)]
)
def test_interval_keeps_the_measured_cost_to_its_share(cost: float, step: float, steps: int) -> None:
    assert steps_between(cost, step) == steps


def test_automatic_interval_waits_for_what_the_ranks_agree_on() -> None:
    interval = Interval(None)
    interval.begin(100)
    assert [step for step in range(101, 104) if interval.due(step)] == [102, 103]
    interval.taken(102)
    assert not interval.due(1000), "its cost is not known"
    interval.agreed(0.05, 0.5)
    assert [step for step in range(103, 111) if interval.due(step)] == [109, 110]
    interval.taken(109)
    assert [step for step in range(110, 118) if interval.due(step)] == [116, 117], "known without another exchange"
    interval.agreed(0.02, 0.5)
    assert [step for step in range(110, 114) if interval.due(step)] == [112, 113]


def test_fixed_interval_is_kept() -> None:
    interval = Interval(3)
    interval.begin(10)
    interval.taken(13)
    interval.agreed(9.0, 0.001)
    assert [step for step in range(14, 18) if interval.due(step)] == [16, 17]


def test_partner_is_the_same_place_in_the_pod_half_of_all_pods_away() -> None:
    pods = [0, 0, 1, 1, 2, 2, 3, 3]
    pairs = [pair(pods, rank) for rank in range(8)]
    assert pairs == [(4, 4), (5, 5), (6, 6), (7, 7), (0, 0), (1, 1), (2, 2), (3, 3)]
    assert [pair([3, 5, 8], rank) for rank in range(3)] == [(1, 2), (2, 0), (0, 1)]
    assert pair([0, 0], 0) is None
    assert pair([0, 0, 1], 0) is None


@pytest.mark.parametrize("pods", [2, 3, 4, 5, 6, 7, 8, 9, 64, 65])
def test_any_half_of_the_pods_in_a_row_takes_no_snapshot_with_its_copy(pods: int) -> None:
    """The upper half is one of them."""
    pairs = [found for pod in range(pods) if (found := pair(range(pods), pod))]
    assert [pairs[to][1] for to, _ in pairs] == list(range(pods)), "who holds a copy knows of whom"
    for first in range(pods):
        lost = {(first + more) % pods for more in range(pods // 2)}
        assert not [pod for pod in lost if pairs[pod][0] in lost]


def size(pod: int, digest: str, room: int) -> Size:
    return Size(pod=pod, private_bytes=1000, data_bytes=50_000, data_digest=digest, room=room)


def test_whole_snapshots_are_sent_where_no_other_pod_has_the_data() -> None:
    replicas = [size(0, "a", 20_000), size(1, "a", 20_000)]
    assert sent_whole(replicas) == (False, False)
    assert lacking(replicas, (False, False)) is None
    shards = [size(0, "a", 200_000), size(1, "b", 20_000)]
    assert sent_whole(shards) == (True, True)
    assert lacking(shards, (True, True)) == (2 * (4096 + 51_000), 20_000)
    assert sent_whole([size(0, "a", 0), size(0, "a", 0)]) == (True, True), "a mate in the pod is lost with it"
