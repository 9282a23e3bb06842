"""The flags of `dtj bench`."""

from __future__ import annotations

import sys

from dtj.arguments import Verb, Verbs, cluster_flags, late, natural


def add_bench(verbs: Verbs[Verb]) -> None:
    bench = verbs.add_parser(
        "bench",
        description="Time real steps of a built-in model over world sizes, strategies, batch sizes and links, each "
        "trial with fresh ranks on this machine. A bench that was stopped continues in its folder. Exit code: 0, "
        "1 no trial ended well, 2 bad input, 130 after Ctrl-C.",
        help="time real steps over ranks, strategies, batch sizes and links",
    )
    add = bench.add_argument
    add("--world", default="1,2", metavar="N,N,...", help="ranks [%(default)s]")
    add("--strategy", default="ddp,fsdp", metavar="NAME,...", help="of the Trainer; '' for none [%(default)s]")
    add("--arm", default="all", metavar="NAME,...", help="torchrun-ddp, fsdp2, lightning, accelerate: the same work by "
        "others; all: those that are installed, ours: none [%(default)s]")  # fmt: skip
    add("--batch", default="32", metavar="N,N,...", help="samples of a step [%(default)s]")
    add("--scaling", default="weak", metavar="weak,strong",
        help="whether --batch is that of each rank, or of all together [%(default)s]")  # fmt: skip
    add("--link", default="none", metavar="RATE,...", help="none, or between two nodes, as in 200mbit,1gbit; the nodes "
        "are network namespaces, which need root; cluster: each rank is a pod of --image [%(default)s]")  # fmt: skip
    add("--model", default="mlp", metavar="NAME[:SIZE=N,...]",
        help="mlp, gpt or resnet, as in mlp:width=1024,layers=8 [%(default)s]")  # fmt: skip
    add("--repeats", type=natural, default=5, metavar="N", help="trials of each row [%(default)s]")
    add("--steps", type=natural, default=30, metavar="N", help="timed steps of a trial [%(default)s]")
    add("--warmup", type=natural, default=10, metavar="N", help="steps before those, which are dropped [%(default)s]")
    add("--threads", type=natural, default=1, metavar="N", help="torch threads of a rank [%(default)s]")
    add("--timeout", default="10m", metavar="TIME", help="of one trial, as in 90s or 10m [%(default)s]")
    add("--python", default=sys.executable, metavar="FILE", help="interpreter of the ranks, which has dtj-trainer and "
        "torch [that of dtj]")  # fmt: skip
    add("-o", "--out", default=".dtj/bench", metavar="FOLDER", help="results.jsonl (each trial), results.json, "
        "results.csv and plots [%(default)s]")  # fmt: skip
    add("--image", metavar="NAME", help="with --link cluster: image with dtj-trainer, such as dtj-trainer:cpu")
    cluster_flags(bench)
    again = bench.add_mutually_exclusive_group()
    again.add_argument("--fresh", action="store_true", help="first drop the trials that the folder has")
    again.add_argument("--retry", action="store_true", help="repeat the trials that failed")
    bench.set_defaults(command=late("dtj.bench.command", "command"))
