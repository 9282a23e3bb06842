"""Runs `python -m dtj_trainer.measure profile --config train.yaml [--field value …]`, `… link` and `… bench`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dtj_trainer.cli import guarded, make_task
from dtj_trainer.config import TrainerConfig
from dtj_trainer.config_parser import build, override, read_yaml
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.errors import ConfigError
from dtj_trainer.measure.bench.command import add_bench, bench
from dtj_trainer.measure.link import measure_link
from dtj_trainer.measure.rank_profile import measure_rank


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line. Exit codes: 0 done, 93 a wrong field or flag, else an error."""
    parser = argparse.ArgumentParser(
        prog="python -m dtj_trainer.measure", description="Measure for `dtj simulate` and `dtj bench`."
    )
    kinds = parser.add_subparsers(required=True, metavar="profile|link|bench", dest="kind")
    profile = kinds.add_parser(
        "profile",
        help="the step of one rank of a train.yaml",
        allow_abbrev=False,
        description="Time steps of a train.yaml without other ranks. --field value overrides the file, as with "
        "dtj-train: --global_batch_size is the batch of one rank.",
    )
    profile.add_argument("--config", type=Path, required=True, metavar="train.yaml")
    profile.add_argument("--timed-steps", type=int, default=30, metavar="N", help="steps that are timed [%(default)s]")
    profile.add_argument("--out", type=Path, default=Path("profile.json"), metavar="FILE", help="[%(default)s]")
    link = kinds.add_parser(
        "link",
        help="latency and bandwidth between the ranks of a group",
        description="Time all-reduces over a group of ranks, each on a node of its own: torchrun --nnodes 2 "
        "--nproc-per-node 1 … -m dtj_trainer.measure link. Rank 0 writes the file.",
    )
    link.add_argument("--trials", type=int, default=10, metavar="N", help="all-reduces of each size [%(default)s]")
    link.add_argument("--out", type=Path, default=Path("link.json"), metavar="FILE", help="[%(default)s]")
    add_bench(kinds)
    flags, fields = parser.parse_known_args(argv)
    if flags.kind != "profile" and fields:
        parser.error(f"unrecognized arguments: {' '.join(fields)}")
    if flags.kind == "link":
        return guarded(lambda: _link(flags.out, flags.trials))
    if flags.kind == "bench":
        return guarded(lambda: bench(flags))
    return guarded(lambda: _profile(flags.config, fields, flags.out, flags.timed_steps))


def _profile(config_file: Path, fields: Sequence[str], out: Path, steps: int) -> int:
    import torch

    tree = read_yaml(config_file)
    override(tree, fields)
    spelled, arguments = tree.pop("task", None), tree.pop("arguments", {})
    config = build(TrainerConfig, tree)
    torch.manual_seed(config.seed)
    found = measure_rank(make_task(spelled, arguments), config, steps=steps)
    total, size = sum(found.seconds.values()), sum(size for size, _ in found.gradients)
    _write(out, found.document())
    sys.stdout.write(
        f"a step of {found.samples} samples takes {1000 * total:.1f} ms and sends {size:,} bytes; "
        f"dtj simulate --profile {out} --link 25Gbit/s,50us\n"
    )
    return 0


def _link(out: Path, trials: int) -> int:
    group = Group.open(WorkerEnv.read())
    try:
        found = measure_link(group, trials=trials)
        if group.rank == 0:
            _write(out, found.document())
            sys.stdout.write(
                f"{8 * found.bytes_per_second / 1e6:,.1f} Mbit/s, {1e6 * found.latency_seconds:,.1f} us a message, at "
                f"most {100 * found.worst_error:.0f} % from what was measured; dtj simulate --link {out}\n"
            )
    finally:
        group.close()
    return 0


def _write(out: Path, document: dict[str, Any]) -> None:
    try:
        out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}; write the name of a file in a folder that exists") from error


if __name__ == "__main__":
    raise SystemExit(main())
