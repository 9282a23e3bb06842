"""One row for each number of ranks: the parts of the model put together. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from dtj.simulate import collectives, goodput
from dtj.simulate.network import Network
from dtj.simulate.overlap import Overlapped, data_parallel, sharded
from dtj.simulate.profile import Profile
from dtj.simulate.stragglers import expected_maximum

Collective = Literal["ring", "hierarchical", "sharded"]
Source = Literal["measured", "modelled"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """Everything but the number of ranks."""

    profile: Profile
    network: Network
    collective: Collective = "ring"
    """ring: an all-reduce of each bucket; hierarchical: the same in two levels; sharded: weights are gathered twice
    and gradients scattered, as under fsdp."""
    overlap: bool = True
    compression: float = 1.0
    """Gradients' bytes over those that are sent."""
    compression_seconds: float = 0.0
    """CPU seconds of compression in a step."""
    global_batch: float | None = None
    """Samples of a step over all ranks for the strong efficiency; None: those of the profile."""
    failures: goodput.Failures | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """The seconds of one step."""

    compute: float
    straggling: float
    """Waits for the slowest rank."""
    exposed: float
    """Communication and compression that the computation does not hide."""
    busy: float
    """Communication as a whole."""

    @property
    def seconds(self) -> float:
        """Seconds of the step."""
        return self.compute + self.straggling + self.exposed


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """The result for one number of ranks."""

    ranks: int
    source: Source
    seconds: float
    """Of a step with the profile's samples on each rank."""
    samples_per_second: float
    weak: float
    """samples_per_second over those of so many ranks without communication."""
    strong: float | None = None
    """The time of one rank for the global batch, over ranks x their time.

    None: unknown, or less than a sample a rank.
    """
    communication: float | None = None
    """The share of the step that is communication in the open; None: unknown."""
    goodput: float | None = None
    """None: no failures were given."""
    checkpoint_seconds: float | None = None
    """Between two checkpoints."""
    step: Step | None = None
    """The parts of a modelled step."""


def step(setup: Setup, ranks: int, profile: Profile | None = None) -> Step:
    """Models one step. `profile` stands in for that of the setup."""
    own = profile or setup.profile
    passed = _passes(setup, ranks, own) if ranks > 1 else Overlapped(own.last_backward, 0.0, 0.0)
    return Step(
        compute=own.seconds,
        straggling=own.spread * expected_maximum(ranks),
        exposed=max(0.0, passed.exposed),
        busy=passed.busy,
    )


def _passes(setup: Setup, ranks: int, profile: Profile) -> Overlapped:
    buckets = profile.buckets()
    if setup.collective == "sharded":
        cost = partial(collectives.shard, ranks=ranks, network=setup.network)
        each = sharded(buckets, profile.forward / profile.micro_batches, profile.last_backward, cost)
        # Each micro-batch gathers and scatters.
        return Overlapped(
            each.seconds * profile.micro_batches,
            each.busy * profile.micro_batches,
            each.exposed * profile.micro_batches,
        )
    which = collectives.hierarchical if setup.collective == "hierarchical" else collectives.all_reduce
    return data_parallel(
        buckets,
        profile.last_backward,
        partial(which, ranks=ranks, network=setup.network),
        overlap=setup.overlap,
        factor=setup.compression,
        compression_seconds=setup.compression_seconds,
    )


def rows(setup: Setup, ranks: Sequence[int], measured: Mapping[int, float] | None = None) -> list[Row]:
    """Returns a modelled row for each number of ranks, and a measured one before it where there is one.

    One rank of a measured profile is measured.

    Args:
        setup: What is modelled.
        ranks: The numbers of ranks.
        measured: Seconds of a real step by number of ranks.
    """
    out: list[Row] = []
    for count in ranks:
        found = (measured or {}).get(count)
        if found is not None:
            out.append(_row(setup, count, "measured", found))
        modelled = step(setup, count)
        own = count == 1 and bool(setup.profile.measured) and found is None
        out.append(_row(setup, count, "measured" if own else "modelled", modelled.seconds, modelled))
    return out


def _row(setup: Setup, ranks: int, source: Source, seconds: float, modelled: Step | None = None) -> Row:
    share, interval = None, None
    if setup.failures is not None:
        share, interval = goodput.of_group(setup.failures, setup.network.nodes(ranks))
    samples = setup.profile.samples
    return Row(
        ranks=ranks,
        source=source,
        seconds=seconds,
        samples_per_second=ranks * samples / seconds,
        weak=setup.profile.seconds / seconds,
        strong=_strong(setup, ranks) if modelled else None,
        communication=modelled.exposed / seconds if modelled else None,
        goodput=share,
        checkpoint_seconds=interval,
        step=modelled,
    )


def _strong(setup: Setup, ranks: int) -> float | None:
    whole = setup.global_batch or setup.profile.samples
    if whole < ranks:
        return None
    alone = setup.profile.with_samples(whole).seconds
    return alone / (ranks * step(setup, ranks, setup.profile.with_samples(whole / ranks)).seconds)
