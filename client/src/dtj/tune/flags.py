"""The flags of `dtj tune`."""

from __future__ import annotations

import argparse

from dtj.arguments import Verb, Verbs, cluster_flags, file_argument, late


def add_tune(verbs: Verbs[Verb]) -> None:
    tune = verbs.add_parser(
        "tune",
        description="Search hyperparameters. Each trial is a job that recovers by itself, on this machine or with "
        "--cluster on a cluster. The sweep continues where it was after any stop or kill. Exit code: 0 finished with "
        "a result, 1 no trial is complete, 2 bad input, 130 after Ctrl-C (once: trials stop gracefully; twice: dtj "
        "ends at once).",
        help="search hyperparameters; each trial is a job",
    )
    file_argument(tune)
    add = tune.add_argument
    add(
        "--dir", metavar="FOLDER", help="of the sweep: its storage, trials, page and best checkpoint [.dtj/sweeps/NAME]"
    )
    add(
        "--fresh",
        action="store_true",
        help="first remove that folder with all trials and checkpoints of the sweep; not with --cluster",
    )
    add("--plain", action="store_true", help="print lines instead of the live table")
    add("--dry-run", action="store_true", help="check the sweep and print the job of a trial; start nothing")
    add("--cluster", action="store_true", help="create the trials' jobs on a cluster")
    cluster_flags(tune)
    tune.set_defaults(command=late("dtj.tune.command", "command"))


def is_of_cluster(flags: argparse.Namespace) -> bool:
    """Returns whether a flag asks for a cluster."""
    return bool(flags.cluster or flags.kubeconfig or flags.context or flags.namespace)
