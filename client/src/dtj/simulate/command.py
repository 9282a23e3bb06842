"""`dtj simulate`: reads the flags and the profile, and prints what the model gives."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from dtj.errors import InputError, LocalRunError
from dtj.simulate import chart, units
from dtj.simulate.goodput import Failures
from dtj.simulate.model import Setup, rows
from dtj.simulate.network import Network, parse_link
from dtj.simulate.profile import Profile, even, parse
from dtj.simulate.table import document, notes, table

FORMATS = (".html", ".svg", ".png")
MEGABYTE = 1024 * 1024
"""As DistributedDataParallel counts its `bucket_cap_mb`."""


def command(flags: argparse.Namespace) -> int:
    """Prints a row for each number of ranks. Raises InputError that names the flag."""
    page = Path(flags.page) if flags.page else None
    if page is not None and page.suffix not in FORMATS:
        raise InputError(f"--page {page}: end the name in {', '.join(FORMATS)}")
    wanted, setup = units.ranks(flags.ranks), _setup(flags)
    measured = _measured(flags.measured, wanted)
    found, remarks = rows(setup, wanted, measured), notes(setup, local_given=flags.local_link is not None)
    if page is not None:
        try:
            chart.write(page, found, remarks)
        except OSError as error:
            raise LocalRunError(f"can't write {page}: {error.strerror}") from error
    if flags.output == "json":
        print(json.dumps(document(found, remarks), indent=2))
    else:
        print("\n".join([table(found), "", *remarks, *([f"{page}"] if page else [])]))
    return 0


def _setup(flags: argparse.Namespace) -> Setup:
    factor, seconds = 1.0, 0.0
    if flags.compression:
        spelled, _, cost = flags.compression.partition(",")
        factor = units.positive(spelled, "--compression", "2 for half of the bytes, or 2,3ms with its CPU time")
        if factor < 1:
            raise InputError(f"--compression {flags.compression}: write 1 or more, such as 2 for half of the bytes")
        seconds = units.seconds(cost, "--compression") if cost else 0.0
        if flags.collective == "sharded":
            raise InputError("--compression: the model has none for --collective sharded; leave one of them out")
    if flags.collective == "sharded" and not flags.overlap:
        raise InputError("--no-overlap: the model of --collective sharded always overlaps; leave one of them out")
    if flags.collective == "hierarchical" and flags.placement == "interleaved":
        raise InputError("--placement interleaved: --collective hierarchical has no ring over all ranks; leave one out")
    batch = units.positive(flags.global_batch, "--global-batch", "8192") if flags.global_batch else None
    return Setup(
        profile=_profile(flags),
        network=_network(flags),
        collective=flags.collective,
        overlap=flags.overlap,
        compression=factor,
        compression_seconds=seconds,
        global_batch=batch,
        failures=_failures(flags),
    )


def _profile(flags: argparse.Namespace) -> Profile:
    try:
        text = Path(flags.profile).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no text"
        remedy = "`python -m dtj_trainer.measure profile --config train.yaml` writes one"
        raise InputError(f"--profile {flags.profile}: {reason}; {remedy}") from error
    profile = parse(text, flags.profile)
    if flags.spread is not None:
        profile = replace(profile, spread=units.seconds(flags.spread, "--spread"))
    if flags.bucket_mb is not None:
        size = MEGABYTE * units.positive(flags.bucket_mb, "--bucket-mb", "25")
        profile = replace(profile, bucket_bytes=size)
        if "gradients" not in json.loads(text):  # there are no parameters to fill the buckets with
            profile = replace(profile, gradients=even(profile.gradient_bytes, size, profile.last_backward))
    return profile


def _network(flags: argparse.Namespace) -> Network:
    node = parse_link(flags.link, "--link")
    for name in ("ranks_per_node", "nodes_per_rack"):
        value = getattr(flags, name)
        if value is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} {value}: write a whole number, 1 or more")
    factor = units.positive(flags.oversubscription, "--oversubscription", "4 for uplinks of a quarter")
    if factor < 1:
        raise InputError(f"--oversubscription {flags.oversubscription}: write 1 or more, such as 4")
    for flag, given in (("--rack-link", flags.rack_link is not None), ("--oversubscription", factor > 1)):
        if given and flags.nodes_per_rack is None:
            raise InputError(f"{flag}: write --nodes-per-rack too, such as --nodes-per-rack 16")
    return Network(
        node=node,
        local=parse_link(flags.local_link, "--local-link") if flags.local_link else node,
        rack=parse_link(flags.rack_link, "--rack-link") if flags.rack_link else node,
        ranks_per_node=flags.ranks_per_node,
        nodes_per_rack=flags.nodes_per_rack,
        oversubscription=factor,
        placement=flags.placement,
    )


def _failures(flags: argparse.Namespace) -> Failures | None:
    given = {name: getattr(flags, name) for name in ("recovery", "checkpoint", "checkpoint_every")}
    if flags.mtbf is None:
        for name, value in given.items():
            if value is not None:
                raise InputError(
                    f"--{name.replace('_', '-')}: write --mtbf too, the time between two failures of one node, such as "
                    "--mtbf 1000h"
                )
        return None
    for flag, text in (("--recovery", flags.recovery), ("--checkpoint", flags.checkpoint)):
        if text is None:
            meaning = "from a failure to the next step" if flag == "--recovery" else "that a save stops the steps"
            raise InputError(f"{flag}: write with --mtbf the time {meaning}, such as {flag} 30s")
    positive = {}
    for flag, text in (
        ("--mtbf", flags.mtbf),
        ("--checkpoint", flags.checkpoint),
        ("--checkpoint-every", flags.checkpoint_every),
    ):
        positive[flag] = units.seconds(text, flag) if text is not None else None
        if positive[flag] == 0:
            raise InputError(f"{flag} {text}: write a duration above 0, such as 30s")
    return Failures(
        node_mtbf=positive["--mtbf"] or 0.0,
        recovery=units.seconds(flags.recovery, "--recovery"),
        checkpoint=positive["--checkpoint"] or 0.0,
        interval=positive["--checkpoint-every"],
    )


def _measured(given: list[str], wanted: list[int]) -> dict[int, float]:
    """Returns the seconds of real steps by number of ranks."""
    out: dict[int, float] = {}
    for text in given:
        count, equals, took = text.partition("=")
        if not equals or not count.isdecimal():
            raise InputError(f"--measured {text}: write ranks and the time of a step, such as --measured 8=112ms")
        if int(count) not in wanted:
            raise InputError(f"--measured {text}: write {count} into --ranks too")
        out[int(count)] = units.seconds(took, "--measured")
        if not out[int(count)]:
            raise InputError(f"--measured {text}: write a time above 0, such as --measured 8=112ms")
    return out
