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
GPU_OPTIONS = ("--gpus-per-node", "--gres", "--gpus", "--gpus-per-task")
_KNOWN = {entry.path: entry for entry in DIRECTIVES}


@dataclass
class Allocation:
    """The directives of a script, by long name, each with its place in the file."""

    options: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)

    def number(self, name: str) -> int | None:
        """Returns the value of an option as a number; None if it is absent.

        Raises InputError if it is no number, or 0.
        """
        value = self.options.get(name)
        if value is None:
            return None
        if not value.isdecimal() or not int(value):
            raise InputError(f"{self.places[name]} {name}: write a whole number of 1 or more, not {value!r}")
        return int(value)

    @property
    def nodes(self) -> tuple[int, int] | None:
        """Least and greatest number of nodes; None if no option decides it."""
        value = self.options.get("--nodes")
        if value is None:
            return self._implied_nodes
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", value)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= low <= high:
            text = f"write a whole number of 1 or more in the file, or MIN-MAX, not {value!r}"
            raise InputError(f"{self.places['--nodes']} --nodes: {text}")
        return low, high

    @property
    def nodes_at(self) -> str:
        """Place of the option that decides the number of nodes."""
        found = (name for name in ("--nodes", "--ntasks", "--gpus") if name in self.places)
        return next((f"{self.places[name]} {name}" for name in found), "")

    @property
    def _implied_nodes(self) -> tuple[int, int] | None:
        """Number of nodes that a total and the share of each node decide."""
        for name, total, share in (
            ("--ntasks", self.number("--ntasks"), self.number("--ntasks-per-node")),
            ("--gpus", self._count("--gpus"), self._count("--gpus-per-node")),
        ):
            if total and share:
                if total > share and total % share:
                    raise InputError(f"{self.places[name]} {name}: {total} can't be divided by {name}-per-node {share}")
                nodes = max(1, total // share)
                return nodes, nodes
        return None

    @property
    def tasks(self) -> int | None:
        """Tasks of a node. Raises InputError if the nodes would have different numbers."""
        total, most, nodes = self.number("--ntasks"), self.number("--ntasks-per-node"), (self.nodes or (1, 1))[1]
        if total is None or (most and total % nodes):
            return most
        if total % nodes:
            raise InputError(f"{self.places['--ntasks']} --ntasks: {total} can't be divided by --nodes {nodes}")
        return min(total // nodes, most or total)

    @property
    def gpus(self) -> int | None:
        """GPUs of a node."""
        if self.gpus_from is None:
            return None
        name, count = self.gpus_from, self._count(self.gpus_from) or 0
        if name == "--gpus":
            nodes = (self.nodes or (1, 1))[1]
            if count % nodes:
                raise InputError(f"{self.places[name]} {name}: {count} can't be divided by --nodes {nodes}")
            return count // nodes
        return count * (self.tasks or 1) if name == "--gpus-per-task" else count

    @property
    def gpus_from(self) -> str | None:
        """Name of the option that decides the GPUs."""
        return next((name for name in GPU_OPTIONS if self._count(name) is not None), None)

    def _count(self, name: str) -> int | None:
        """Returns the GPUs of an option."""
        found = [gpu for part in self.options.get(name, "").split(",") if (gpu := _gpus_of(name, part))]
        return sum(count for _, count in found) if found else None


def _gpus_of(name: str, part: str) -> tuple[str, int] | None:
    """Returns model and number in `gpu:a100:4`, or in `a100:4` and `4` of a flag for GPUs alone; None for others."""
    kind, *rest = re.split("[:=]", part.partition("(")[0].removeprefix("gres/").removeprefix("gres:"))
    if not kind or (name == "--gres" and kind != "gpu"):
        return None
    parts = rest if kind == "gpu" else [kind, *rest]
    numbers = [int(one) for one in parts if one.isdecimal()]
    return next((one for one in parts if not one.isdecimal()), ""), numbers[-1] if numbers else 1


def read(text: str, draft: Draft) -> Allocation:
    """Returns the #SBATCH directives of a script. Notes each, and raises InputError for what can't be converted."""
    found = Allocation()
    begun = False
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r"#SBATCH\s+(.*)", line)
        begun = begun or bool(line.strip() and not line.startswith("#"))
        if match and begun:
            draft.note(
                How.NOT_CARRIED, f"line {number}", "sbatch reads no directive behind the first command", match[1]
            )
        elif match:
            _directive(match[1], f"line {number}", found, draft)
    return found


def _directive(text: str, where: str, into: Allocation, draft: Draft) -> None:
    try:
        tokens = shlex.split(re.sub(r"(?:^|\s)#.*", "", text))
    except ValueError as error:
        raise InputError(f"{where}: {error}") from error
    if tokens[:1] in (["hetjob"], ["packjob"]):
        raise InputError(f"{where} {tokens[0]}: all pods of a job are the same: write a file for the part that trains")
    options, rest = split(tokens)
    take(options, where, into, draft)
    if rest:
        draft.note(How.UNKNOWN, where, "no directive that is known here; it was left out", shlex.join(rest))


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
        for part in value.split(",") if name in GPU_OPTIONS else ():
            if text := _beyond_number(name, part):
                draft.note(How.NOT_CARRIED, f"{where} {name}", text, value)
        into.options[name] = value
        into.places[name] = where


def _beyond_number(name: str, part: str) -> str:
    """Returns what to do about a model of GPU, or about another resource; "" for neither."""
    found = _gpus_of(name, part)
    if found is None:
        return "" if part in ("", "none") else f"request {part} as an extended resource in the container's resources"
    model, _ = found
    if re.match(r"\d+g\.", model):
        return f"request nvidia.com/mig-{model} in the container's resources instead of nvidia.com/gpu"
    return f"choose {model} with spec.template.spec.nodeSelector" if model else ""


def is_needed(name: str) -> bool:
    """Returns whether the job lacks something without the option."""
    return name not in _KNOWN or _KNOWN[name].how is not How.NOT_NEEDED
