"""The directives of an sbatch script, and what becomes of each. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from dtj.convert.fields import Draft, Field, How
from dtj.errors import InputError

_OUTPUT = "the output of each rank is in the pod's log, and on spec.checkpoint.volume: read it with dtj logs"
_PLACE = "partitions are Slurm's: choose nodes with spec.template.spec.nodeSelector and tolerations"
_ACCOUNT = "quotas are the namespace's: see ResourceQuota and priorityClassName"
_MAIL = "dtj wait ends when the job does: let it start what notifies you"
_TASKS = "spec.processesPerPod, the tasks of a node; with a launcher its --nproc-per-node"
_GPUS = "nvidia.com/gpu in the container's resources"

DIRECTIVES = (
    Field("--nodes", How.OTHER, "spec.replicas; MIN-MAX becomes spec.elastic {minReplicas, maxReplicas}"),
    Field("--ntasks", How.OTHER, _TASKS),
    Field("--ntasks-per-node", How.OTHER, _TASKS),
    Field("--gres", How.OTHER, _GPUS),
    Field("--gpus", How.OTHER, f"{_GPUS}, divided by --nodes"),
    Field("--gpus-per-node", How.OTHER, _GPUS),
    Field("--gpus-per-task", How.OTHER, f"{_GPUS}, for all tasks of a node"),
    Field("--ntasks-per-gpu", How.NOT_CARRIED, "set spec.processesPerPod"),
    Field("--cpus-per-task", How.OTHER, "cpu in the container's resources.requests, for all tasks of a node"),
    Field("--cpus-per-gpu", How.OTHER, "cpu in the container's resources.requests, for all GPUs of a node"),
    Field("--mem", How.OTHER, "memory in the container's resources, in Mi, Gi or Ti; 0, all of the node, is left out"),
    Field("--mem-per-cpu", How.OTHER, "memory in the container's resources, for all processors of a node"),
    Field("--mem-per-gpu", How.OTHER, "memory in the container's resources, for all GPUs of a node"),
    Field("--time", How.OTHER, "spec.activeDeadlineSeconds"),
    Field("--job-name", How.OTHER, "metadata.name"),
    Field("--chdir", How.OTHER, "workingDir of the container"),
    Field(
        "--signal",
        How.NOT_CARRIED,
        "a pod that must go gets SIGTERM: set spec.template.spec.terminationGracePeriodSeconds",
    ),
    Field("--requeue", How.NOT_NEEDED, "lost pods are always replaced, and the group restarts"),
    Field(
        "--no-requeue",
        How.NOT_CARRIED,
        "set spec.restart.maxRestarts: 0 to fail at the first error; lost pods are always replaced",
    ),
    Field(
        "--array",
        How.REFUSED,
        "one job is one training: write a file for each element, for instance with a loop over sed",
    ),
    Field("--exclusive", How.NOT_NEEDED, "a pod has its GPUs alone"),
    Field("--export", How.NOT_CARRIED, "nothing of your shell is in the pod: write variables in the container's env"),
    Field("--partition", How.NOT_CARRIED, _PLACE),
    Field("--constraint", How.NOT_CARRIED, _PLACE),
    Field("--nodelist", How.NOT_CARRIED, _PLACE),
    Field("--exclude", How.NOT_CARRIED, _PLACE),
    Field("--reservation", How.NOT_CARRIED, _PLACE),
    Field("--switches", How.NOT_CARRIED, "prefer nodes near each other with spec.template.spec.affinity.podAffinity"),
    Field("--account", How.NOT_CARRIED, _ACCOUNT),
    Field("--qos", How.NOT_CARRIED, _ACCOUNT),
    Field("--nice", How.NOT_CARRIED, _ACCOUNT),
    Field("--output", How.NOT_CARRIED, _OUTPUT),
    Field("--error", How.NOT_CARRIED, _OUTPUT),
    Field("--open-mode", How.NOT_NEEDED, "each pod has a log of its own"),
    Field("--mail-type", How.NOT_CARRIED, _MAIL),
    Field("--mail-user", How.NOT_CARRIED, _MAIL),
    Field("--dependency", How.NOT_CARRIED, "create the job after dtj wait of the other"),
    Field("--begin", How.NOT_CARRIED, "create the job with spec.suspend: true, and resume it then"),
    Field("--comment", How.NOT_CARRIED, "write an annotation"),
    Field("--licenses", How.NOT_CARRIED, "request an extended resource in the container's resources"),
    Field("--tmp", How.NOT_CARRIED, "request ephemeral-storage in the container's resources"),
    Field("--image", How.OTHER, "spec.image"),
    Field("--container-image", How.OTHER, "spec.image"),
    Field("--container-workdir", How.OTHER, "workingDir of the container"),
    Field("--container-mounts", How.NOT_CARRIED, "write volumes and volumeMounts in spec.template"),
    Field("--volume", How.NOT_CARRIED, "write volumes and volumeMounts in spec.template"),
    *(
        Field(
            f"--{name}",
            How.NOT_CARRIED,
            "an option of Slurm or of its container plugin without a counterpart: remove it, or set it in"
            " spec.template",
        )
        for name in (
            "module",
            "container-mount-home",
            "no-container-mount-home",
            "container-name",
            "container-env",
            "container-writable",
            "mpi",
            "network",
            "wckey",
            "cluster",
        )
    ),
    *(
        Field(f"--{name}", How.NOT_NEEDED, "the kubelet binds processes: see its CPU and topology manager")
        for name in (
            "cpu-bind",
            "gpu-bind",
            "mem-bind",
            "hint",
            "threads-per-core",
            "distribution",
            "cores-per-socket",
            "sockets-per-node",
            "cpu-freq",
            "accel-bind",
        )
    ),
    *(
        Field(f"--{name}", How.NOT_NEEDED, "the agents start the ranks together, and stop all when one fails")
        for name in (
            "wait-all-nodes",
            "kill-on-bad-exit",
            "wait",
            "label",
            "unbuffered",
            "jobid",
            "overlap",
            "exact",
            "immediate",
            "spread-job",
            "propagate",
            "get-user-env",
            "parsable",
            "verbose",
            "quiet",
            "no-kill",
            "pty",
            "overcommit",
            "oversubscribe",
            "input",
            "export-file",
        )
    ),
)
SHORT = {
    "N": "--nodes",
    "n": "--ntasks",
    "c": "--cpus-per-task",
    "J": "--job-name",
    "t": "--time",
    "p": "--partition",
    "A": "--account",
    "o": "--output",
    "e": "--error",
    "a": "--array",
    "q": "--qos",
    "G": "--gpus",
    "w": "--nodelist",
    "x": "--exclude",
    "C": "--constraint",
    "D": "--chdir",
    "d": "--dependency",
    "L": "--licenses",
    "l": "--label",
    "u": "--unbuffered",
    "K": "--kill-on-bad-exit",
    "m": "--distribution",
    "s": "--oversubscribe",
    "O": "--overcommit",
    "W": "--wait",
    "k": "--no-kill",
    "Q": "--quiet",
    "v": "--verbose",
    "b": "--begin",
    "i": "--input",
    "V": "--volume",
}
BARE = frozenset(
    {
        "--requeue",
        "--no-requeue",
        "--exclusive",
        "--label",
        "--unbuffered",
        "--overlap",
        "--exact",
        "--no-kill",
        "--pty",
        "--spread-job",
        "--overcommit",
        "--oversubscribe",
        "--quiet",
        "--verbose",
        "--parsable",
        "--get-user-env",
        "--container-mount-home",
        "--no-container-mount-home",
        "--container-writable",
    }
)
OPTIONAL = frozenset({"--kill-on-bad-exit", "--nice", "--exclusive", "--propagate", "--immediate"})  # take =VALUE alone
_KNOWN = {entry.path: entry for entry in DIRECTIVES}


@dataclass
class Allocation:
    """The directives of a script, by long name, each with its place in the file."""

    options: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)

    def number(self, name: str) -> int | None:
        """Returns the value of an option as a number; None if it is absent. Raises InputError if it is no number."""
        value = self.options.get(name)
        if value is None:
            return None
        if not value.isdecimal():
            raise InputError(f"{self.places[name]} {name}: write a whole number, not {value!r}")
        return int(value)

    @property
    def nodes(self) -> tuple[int, int] | None:
        """Least and greatest number of nodes."""
        value = self.options.get("--nodes")
        if value is None:
            return None
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", value)
        if not match:
            raise InputError(f"{self.places['--nodes']} --nodes: write a whole number in the file, not {value!r}")
        return int(match[1]), int(match[2] or match[1])

    @property
    def tasks(self) -> int | None:
        """Tasks of a node. Raises InputError if the nodes would have different numbers."""
        if (tasks := self.number("--ntasks-per-node")) is not None:
            return tasks
        total, nodes = self.number("--ntasks"), (self.nodes or (1, 1))[1]
        if total is None:
            return None
        if total % nodes:
            raise InputError(f"{self.places['--ntasks']} --ntasks: {total} can't be divided by --nodes {nodes}")
        return total // nodes

    @property
    def gpus(self) -> int | None:
        """GPUs of a node."""
        for name in ("--gpus-per-node", "--gres", "--gpus", "--gpus-per-task"):
            value = self.options.get(name)
            if value is None:
                continue
            counts = [found for part in value.split(",") if (found := _gpus_of(name, part)) is not None]
            if not counts:
                continue
            count = sum(counts)
            if name == "--gpus":
                nodes = (self.nodes or (1, 1))[1]
                if count % nodes:
                    raise InputError(f"{self.places[name]} {name}: {count} can't be divided by --nodes {nodes}")
                return count // nodes
            return count * (self.tasks or 1) if name == "--gpus-per-task" else count
        return None


def _gpus_of(name: str, part: str) -> int | None:
    """Returns the number in `gpu:a100:4`, or in `a100:4` and `4` of a flag for GPUs alone; None for others."""
    kind, *rest = re.split("[:=]", part.partition("(")[0].removeprefix("gres/").removeprefix("gres:"))
    if name == "--gres" and kind != "gpu":
        return None
    last = (rest or [kind])[-1]
    return int(last) if last.isdecimal() else 1


def read(text: str, draft: Draft) -> Allocation:
    """Returns the #SBATCH directives of a script. Notes each, and raises InputError for what can't be converted."""
    found = Allocation()
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.match(r"#SBATCH\s+(.*)", line):
            try:
                tokens = shlex.split(re.sub(r"(?:^|\s)#.*", "", match[1]))
            except ValueError as error:
                raise InputError(f"line {number}: {error}") from error
            options, _ = split(tokens)
            take(options, f"line {number}", found, draft)
    return found


def split(tokens: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Returns the options in front of a command by long name, and the command."""
    options: list[tuple[str, str]] = []
    place = 0
    while place < len(tokens) and tokens[place].startswith("-") and tokens[place] != "-":
        token = tokens[place]
        place += 1
        if token == "--":
            break
        if token.startswith("--"):
            name, equals, value = token.partition("=")
        elif token[1] in SHORT:
            name, value = SHORT[token[1]], token[2:].removeprefix("=")
            equals = "=" if value else ""
        else:
            name, equals, value = token, "", ""
        if not equals and name not in BARE | OPTIONAL and place < len(tokens) and not tokens[place].startswith("-"):
            value = tokens[place]
            place += 1
        options.append((name, value))
    return options, list(tokens[place:])


def take(options: Sequence[tuple[str, str]], where: str, into: Allocation, draft: Draft) -> None:
    """Adds options to the allocation, and notes what becomes of each."""
    for name, value in options:
        entry = _KNOWN.get(name)
        if entry is None:
            draft.note(How.UNKNOWN, f"{where} {name}", "no directive that is known here; it was left out", value)
            continue
        if entry.how is How.REFUSED:
            raise InputError(f"{where} {name}={value}: {entry.text}")
        draft.note(entry.how, f"{where} {name}", entry.text, value)
        model = re.search(r"([A-Za-z][\w.-]*):\d", value) if name in ("--gres", "--gpus", "--gpus-per-node") else None
        if model and model[1] != "gpu":
            draft.note(
                How.NOT_CARRIED, f"{where} {name}", f"choose {model[1]} with spec.template.spec.nodeSelector", value
            )
        into.options[name] = value
        into.places[name] = where


def seconds(text: str, where: str) -> int | None:
    """Returns Slurm's `[D-]H:M:S`, `M:S`, `M` or `D-H` in seconds; None for no limit."""
    if text.upper() in ("UNLIMITED", "INFINITE", "0", "-1"):
        return None
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not match:
        raise InputError(f"{where} --time: write hours:minutes:seconds, not {text!r}")
    days, first, second, third = (int(part or 0) for part in match.groups())
    if match[1] is not None:
        return ((days * 24 + first) * 60 + second) * 60 + third
    if match[4] is not None:
        return (first * 60 + second) * 60 + third
    return first * 60 + second


def quantity(text: str, where: str, name: str, times: int = 1) -> str | None:
    """Returns Slurm's memory as a Kubernetes quantity; None for 0, all memory of the node."""
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", text.upper())
    if not match:
        raise InputError(f"{where} {name}: write a number with K, M, G or T, not {text!r}")
    return f"{int(match[1]) * times}{match[2] or 'M'}i" if int(match[1]) else None
