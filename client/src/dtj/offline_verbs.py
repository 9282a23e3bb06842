"""The flags of the verbs that start nothing: convert and simulate."""

from __future__ import annotations

import argparse

from dtj.arguments import Verb, Verbs, file_argument, late, natural


def add_convert(verbs: Verbs[Verb]) -> None:
    convert = verbs.add_parser(
        "convert",
        usage="dtj convert [FLAGS] FILE | dtj convert [FLAGS] -- torchrun …",
        description="Convert a PyTorchJob, a TrainJob with its runtime, an sbatch script or a torchrun command"
        " line into "
        "a job. The job goes to standard output; standard error has a line for everything that is carried over in "
        "another form or not at all. Exit code: 0, 1 with --strict if something is not carried over, 2 bad input.",
        help="convert a PyTorchJob, TrainJob, sbatch script or torchrun command into a job",
    )
    file_argument(convert)
    convert.add_argument("words", nargs="*", metavar="ARG", help=argparse.SUPPRESS)
    convert.add_argument("-o", "--out", metavar="FILE", help="write the job to this file instead")
    convert.add_argument("--comments", action="store_true", help="write the notes as comments above the job too")
    convert.add_argument("--strict", action="store_true", help="exit with 1 if something is not carried over")
    convert.add_argument("--image", help="container image, for a script or a command line")
    convert.add_argument("--name", help="name of the job [that in the file, or the file's own]")
    convert.add_argument(
        "--command", dest="run", metavar="LINE", help="command of an image whose own the file does not name"
    )
    convert.add_argument("--gpus", type=natural, metavar="N", help="GPUs of each pod, for a script or a command line")
    convert.add_argument(
        "--runtime", action="append", default=[], metavar="FILE", help="runtime of a TrainJob; repeatable"
    )
    convert.set_defaults(command=late("dtj.convert.command", "command"))


def add_simulate(verbs: Verbs[Verb]) -> None:
    simulate = verbs.add_parser(
        "simulate",
        description="Model the time of a step, the efficiency and the goodput of N ranks from the profile of one rank "
        "and from the latency and bandwidth of the links. No rank is started. Exit code: 0, 2 bad input.",
        help="model how fast a training is with N ranks",
    )
    add = simulate.add_argument
    add("--profile", required=True, metavar="FILE", help="by `python -m dtj_trainer.measure profile`, or by hand")
    add("--ranks", default="1,2,4,8,...,64", metavar="N,N,...", help="such as 1,2,4,8,...,4096 [%(default)s]")
    link = "RATE,LATENCY"
    add("--link", required=True, metavar=link, help="between nodes: 25Gbit/s,50us, or a link.json of `measure link`")
    add("--ranks-per-node", type=natural, default=1, metavar="N", help="ranks that share a node and its NIC [1]")
    add("--local-link", metavar=link, help="between two ranks of a node [as --link]")
    add("--nodes-per-rack", type=natural, metavar="N", help="further nodes are in further racks [one rack]")
    add("--rack-link", metavar=link, help="between nodes of two racks, without --oversubscription [as --link]")
    add("--oversubscription", default="1", metavar="X", help="between racks a node has 1/X of the bandwidth [1]")
    add("--placement", choices=["contiguous", "interleaved"], default="contiguous",
        help="whether ring neighbours share a node, or all ranks of a node its NIC [%(default)s]")  # fmt: skip
    add("--collective", choices=["ring", "hierarchical", "sharded"], default="ring",
        help="all-reduce, the same in two levels, or fsdp's gathers and scatter [%(default)s]")  # fmt: skip
    add("--compression", metavar="X[,TIME]", help="send 1/X of the bytes, for TIME of CPU a step, such as 50,3ms")
    add("--bucket-mb", metavar="MB", help="size of a bucket [that of the profile]")
    add("--overlap", action=argparse.BooleanOptionalAction, default=True, help="send buckets during the backward pass")
    add("--spread", metavar="TIME", help="standard deviation of a rank's own time in a step [that of the profile]")
    add("--global-batch", metavar="N", help="samples of all ranks for the strong efficiency [those of the profile]")
    add("--mtbf", metavar="TIME", help="between two failures of one node, such as 1000h; gives the goodput")
    add("--recovery", metavar="TIME", help="from a failure to the next step")
    add("--checkpoint", metavar="TIME", help="for which a save stops the steps")
    add("--checkpoint-every", metavar="TIME", help="of steps between two saves [the best]")
    add("--measured", action="append", default=[], metavar="N=TIME", help="a real step, shown beside; repeatable")
    add("--page", metavar="FILE", help="also draw the curves: .html, .svg, or .png (needs matplotlib)")
    add("-o", "--output", choices=["json"], help="print JSON instead of the table")
    simulate.set_defaults(command=late("dtj.simulate.command", "command"))
