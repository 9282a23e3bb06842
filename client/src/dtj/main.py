"""The dtj command: its verbs and flags. Turns every error into one line and an exit code."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import NoReturn

from dtj.arguments import DISTRIBUTION, Command, Verb, Verbs, cluster_flags, file_argument, late, natural, one_file
from dtj.bench.flags import add_bench
from dtj.errors import DtjError, InputError
from dtj.export.flags import add_export
from dtj.offline_verbs import add_convert, add_simulate
from dtj.tune.flags import add_tune

INTERRUPTED = 130
SYNONYMS = {  # verbs of other tools
    "apply": "submit",
    "create": "submit",
    "cancel": "delete",
    "stop": "delete",
    "rm": "delete",
    "list": "get",
    "ls": "get",
    "ps": "get",
    "describe": "get NAME -o yaml",
    "status": "get NAME -o wide",
    "log": "logs",
    "migrate": "convert",
    "benchmark": "bench",
    "import": "convert",
    "sweep": "tune",
    "search": "tune",
    "optimize": "tune",
}
BROKEN_PIPE = 141  # as a shell reports SIGPIPE


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Returns the exit code, which each verb's --help describes."""
    commands = parser()
    flags = commands.parse_args(arguments)
    if "file" in flags:
        one_file(flags, commands)
    command: Command = flags.command
    try:
        return command(flags)
    except DtjError as error:
        for line in str(error).splitlines():
            print(f"dtj: {line}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `dtj logs | head`
        sys.stdout = sys.stderr = None
        return BROKEN_PIPE


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all verbs."""
    top = _Parser(prog="dtj", description="Run a DistributedTrainingJob here, or submit and follow it on a cluster.")
    top.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    verbs = top.add_subparsers(required=True, metavar="VERB", parser_class=Verb)
    _run(verbs)
    _scale(verbs)
    _submit(verbs)
    add_convert(verbs)
    _get(verbs)
    _logs(verbs)
    _wait(verbs)
    _report(verbs)
    add_export(verbs)
    add_simulate(verbs)
    add_bench(verbs)
    add_tune(verbs)
    _delete(verbs)
    return top


class _Parser(argparse.ArgumentParser):
    """Suggests the verb that is meant when the given verb does not exist."""

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if wrong:
            known = re.findall(r"[a-z]+", wrong[2])
            near = SYNONYMS.get(wrong[1]) or next(iter(difflib.get_close_matches(wrong[1], known, 1)), None)
            message = f"unknown verb {wrong[1]!r}" + (
                f"; did you mean `dtj {near}`?" if near else f"; the verbs are {', '.join(known)}"
            )
        super().error(message)


class _Version(argparse.Action):
    """Looks the version up on demand, because a source tree that is not installed has none."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        try:
            print(f"dtj {metadata.version(DISTRIBUTION)}")
        except metadata.PackageNotFoundError:
            print("dtj, not installed (running from its source tree)")
        parser.exit()


def _run(verbs: Verbs[Verb]) -> None:
    run = verbs.add_parser(
        "run",
        help="run a job on this machine, without a cluster",
        description="Run a job on this machine: with the planner and agents of a cluster, and pods as process groups "
        "on loopback. Exit code: 0 Complete, 1 Failed, 2 bad input, 130 after Ctrl-C (once: graceful stop; twice: "
        "immediate stop).",
        usage="dtj run [flags] FILE\n       dtj run [flags] [--nproc N] [--nnodes M] [--backend B] [--name NAME] -- "
        "train.py --its-args",
    )
    run.takes_command = True
    file_argument(run)
    _script_flags(run)
    run.add_argument(
        "--kill",
        action="append",
        default=[],
        metavar="worker:RANK@step=S",
        help="SIGKILL one worker, or with pod:ORDINAL@step=S a whole pod, once the job reports step S; repeatable",
    )
    run.add_argument(
        "--runtime", metavar="FILE", help="holds the runtime that spec.runtimeRef names [looked for in the job's file]"
    )
    run.add_argument(
        "--fresh",
        action="store_true",
        help="first remove all files of earlier runs of this job from its volume: checkpoints, logs, the script's own",
    )
    run.add_argument(
        "--volumes-dir", default=".dtj/volumes", metavar="DIR", help="holds a folder for each claim [%(default)s]"
    )
    run.add_argument("--run-dir", metavar="DIR", help="new folder for logs and status [.dtj/runs/NAME-TIME]")
    output = run.add_mutually_exclusive_group()
    output.add_argument(
        "--logs",
        action=argparse.BooleanOptionalAction,
        help="show the output of all workers and agents; --no-logs: no output [rank 0, at most 50 lines at a time]",
    )
    output.add_argument(
        "--rank", type=natural, metavar="R", help="show the output of this global rank instead of rank 0"
    )
    run.add_argument(
        "--plain",
        action="store_true",
        help="print lines instead of the live table (the default where output is no terminal)",
    )
    run.add_argument(
        "-o",
        "--output",
        choices=["json", "yaml"],
        help="print the job with its status to standard output at the end; with --dry-run the job alone [yaml]",
    )
    run.add_argument("--dry-run", action="store_true", help="check the job and print it; start nothing")
    run.set_defaults(command=late("dtj.local.command", "command"))


def _script_flags(run: argparse.ArgumentParser) -> None:
    script = run.add_argument_group(
        "a script without a job file", "dtj run -- train.py --lr 0.1, or -- python train.py, or -- -m package.module"
    )
    script.add_argument(
        "--nproc",
        "--nproc-per-node",
        metavar="N",
        help="ranks of a pod: a number, gpu, cpu or auto, as with torchrun [the number of GPUs; without any, 1]",
    )
    script.add_argument("--nnodes", metavar="M", help="number of pods [1]")
    script.add_argument("--backend", metavar="B", help="gloo or nccl [nccl on a machine with an NVIDIA GPU]")
    script.add_argument("--name", metavar="NAME", help="of the job and of its folder of checkpoints [the script's]")


def _scale(verbs: Verbs[Verb]) -> None:
    scale = verbs.add_parser(
        "scale",
        description="Change the number of pods of an elastic job that `dtj run` runs, within elastic.minReplicas and "
        "maxReplicas. On a cluster: kubectl scale dtj/NAME --replicas=N. "
        "Exit code: 0, 1 the run has ended, 2 bad input.",
        help="change the number of pods of an elastic job that runs here",
    )
    scale.add_argument("folder", metavar="FOLDER", help="folder of the run (.dtj/runs/…)")
    scale.add_argument("--replicas", type=natural, required=True, metavar="N", help="number of pods")
    scale.set_defaults(command=late("dtj.local.scaling", "command"))


def _submit(verbs: Verbs[Verb]) -> None:
    submit = verbs.add_parser(
        "submit",
        description="Create or update every job of a file by server-side apply, if all of them are valid. "
        "With --slurm, print an sbatch script of the file's one job instead. "
        "Exit code: 0, 1 rejected by the cluster, 2 bad input.",
        help="create or update a job on a cluster (server-side apply), or write an sbatch script",
    )
    file_argument(submit)
    submit.add_argument("-o", "--output", choices=["name", "json", "yaml"])
    submit.add_argument("--force-conflicts", action="store_true", help="take over fields that another manager owns")
    cluster_flags(submit)
    slurm = submit.add_argument_group("Slurm", "dtj submit --slurm job.yaml | sbatch")
    slurm.add_argument("--slurm", action="store_true", help="print an sbatch script; start nothing")
    slurm.add_argument("--volumes-dir", metavar="DIR", help="all nodes share it; one folder per claim [.dtj/volumes]")
    slurm.add_argument("--python", metavar="PATH", help="of the training on each node, with dtj in it [this one]")
    slurm.add_argument("--runtime", metavar="FILE", help="holds the runtime that spec.runtimeRef names")
    submit.set_defaults(command=_submit_command)


def _submit_command(flags: argparse.Namespace) -> int:
    if flags.slurm:
        return late("dtj.slurm.command", "command")(flags)
    for name in ("volumes_dir", "python", "runtime"):
        if getattr(flags, name) is not None:
            raise InputError(f"--{name.replace('_', '-')}: give --slurm too; a cluster has its own")
    return late("dtj.cluster.verbs", "submit")(flags)


def _get(verbs: Verbs[Verb]) -> None:
    get = verbs.add_parser(
        "get",
        description="List the jobs of a namespace, or show one, with kubectl's columns; -o wide adds reason and loss.",
        help="list jobs, or show one, with kubectl's columns",
    )
    get.add_argument("name", nargs="?")
    get.add_argument("-A", "--all-namespaces", action="store_true")
    get.add_argument("-o", "--output", choices=["json", "yaml", "wide", "name"])
    cluster_flags(get)
    get.set_defaults(command=late("dtj.cluster.verbs", "get"))


def _logs(verbs: Verbs[Verb]) -> None:
    logs = verbs.add_parser(
        "logs",
        description="Show the output of a job's workers, each line with its pod in front, or the failure evidence "
        "in its status when the pods are gone. Exit code: 0, 1 if no worker ever ran.",
        help="show the output of a job's workers",
    )
    logs.add_argument("name")
    logs.add_argument(
        "-f", "--follow", action="store_true", help="continue until the job has finished, through restarts and new pods"
    )
    only = logs.add_mutually_exclusive_group()
    only.add_argument("--rank", type=natural, metavar="R", help="only the output of this global rank")
    only.add_argument("--pod", type=natural, metavar="ORDINAL", help="only this pod")
    logs.add_argument("--tail", type=natural, metavar="N", help="only the last N lines of each pod")
    logs.add_argument("--since", metavar="DURATION", help="only newer lines, as in 90s, 10m, 1h")
    cluster_flags(logs)
    logs.set_defaults(command=late("dtj.cluster.logs", "logs"))


def _wait(verbs: Verbs[Verb]) -> None:
    wait = verbs.add_parser(
        "wait",
        help="wait until a job has a condition",
        description="Wait until a job has a condition. "
        "Exit code: 0 the condition holds, 1 the job finished otherwise or was deleted, 124 timed out.",
    )
    wait.add_argument("name")
    wait.add_argument(
        "--for",
        dest="condition",
        default="Complete",
        metavar="CONDITION",
        help="Complete, Failed, Running, …, or delete [%(default)s]",
    )
    wait.add_argument("--timeout", metavar="DURATION", help="as in 90s, 10m, 1h [no limit]")
    cluster_flags(wait)
    wait.set_defaults(command=late("dtj.cluster.wait", "wait"))


def _report(verbs: Verbs[Verb]) -> None:
    report = verbs.add_parser(
        "report",
        description="Draw a job's timeline by rank (loading, steps that count, steps lost, stop, hang), its loss by "
        "attempt, its recoveries, and where the time of its steps went, on one page without external resources. Print "
        "what bounds the run, the number that shows it, and what to try. Exit code: 0, 1 no such job, 2 bad input.",
        help="draw a job's timeline, losses, steps and recoveries on one page, and print what bounds it",
    )
    report.add_argument("job", metavar="NAME|FOLDER", help="job on a cluster, or folder of a local run (.dtj/runs/…)")
    report.add_argument(
        "-o", "--output", metavar="FILE", help=".html, .svg, or .png (needs matplotlib) [NAME-report.html]"
    )
    report.add_argument(
        "--metrics",
        metavar="FILE",
        help="metrics.jsonl from the job's folder on its volume [local run: found; cluster: steps that rank 0 printed]",
    )
    report.add_argument(
        "--traces",
        metavar="FOLDER",
        help="with trace-rank*.json of telemetry.profile [beside metrics.jsonl, or a folder below]",
    )
    report.add_argument(
        "--compare",
        metavar="NAME|FOLDER",
        help="another run: its losses, rates and mean step beside those of the first",
    )
    report.add_argument("--compare-metrics", metavar="FILE", help="metrics.jsonl of that run [as --metrics]")
    report.add_argument("--compare-traces", metavar="FOLDER", help="traces of that run [as --traces]")
    report.add_argument("--timeline", action="store_true", help="draw the timeline alone, and print no verdict")
    cluster_flags(report)
    report.set_defaults(command=late("dtj.report.command", "command"))


def _delete(verbs: Verbs[Verb]) -> None:
    delete = verbs.add_parser(
        "delete",
        description="Delete a job and wait until its pods are gone; its checkpoints are kept. "
        "Exit code: 0, 1 no such job, 124 timed out.",
        help="delete a job; its checkpoints are kept",
    )
    delete.add_argument("name")
    delete.add_argument(
        "--wait", action=argparse.BooleanOptionalAction, default=True, help="wait until the job and its pods are gone"
    )
    delete.add_argument("--timeout", metavar="DURATION", help="limit of --wait, as in 90s, 10m [no limit]")
    cluster_flags(delete)
    delete.set_defaults(command=late("dtj.cluster.verbs", "delete"))


if __name__ == "__main__":
    sys.exit(main())
