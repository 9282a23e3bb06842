"""What runs in a local pod: the pod's `trainer` container said in this machine's words. Pure.

The pod template is the one that goes to a cluster. Its image is this Python, its volumes are folders, its addresses are
loopback; a mount path at the start of an argument or of an environment value becomes the folder that stands for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dtj.errors import InputError
from dtj.local import volumes
from dtj_contract import names
from dtj_core.api import find_trainer_container
from dtj_core.plan.model import Object

LOOPBACK = "127.0.0.1"
HOST_VOLUMES = frozenset({names.VOLUME_AGENT, names.VOLUME_TMP, names.VOLUME_SHM})  # /tmp and /dev/shm are the machine's own
_REFERENCE = re.compile(r"\$(\$)?\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What stands in for the cluster, the same for all pods of a run."""

    job_uid: str
    python: str
    """The interpreter in the image's place."""
    node: str
    run_dir: Path
    """What is kept of the run: logs and status.json."""
    scratch_dir: Path
    """What goes with the pods: emptyDirs, the Secret. Short, because a unix socket's path has at most 107 bytes."""
    volumes_dir: Path
    """Holds a folder for every persistent volume claim."""
    working_dir: Path
    environment: Mapping[str, str]
    """dtj's own; a container inherits it as it would an image's."""


@dataclass(frozen=True, kw_only=True)
class Container:
    """One process to start."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    working_dir: Path
    folders: tuple[Path, ...]
    """Must exist before it starts."""
    termination_log: Path
    log: Path


def container(pod: Object, machine: Machine, ports: Sequence[int]) -> Container:
    """The agent of this pod as a local process.

    `ports` holds the agents' ports by ordinal. Raises InputError where the template asks for a value that only a cluster has.
    """
    spec = trainer(pod["spec"])
    ordinal = pod["metadata"]["labels"][names.LABEL_POD_INDEX]
    pod_dir = machine.scratch_dir / f"{ordinal}-{pod['metadata']['uid'][:8]}"
    mounts = _mounts(pod, machine, pod_dir)
    termination_log = pod_dir / "termination-log"
    addresses = [f"{LOOPBACK}:{port}" for port in ports]
    given = _environment(spec, pod, machine.environment, mounts)
    given |= {
        names.ENV_PEERS: ",".join(addresses),
        names.ENV_LISTEN: addresses[int(ordinal)],
        names.ENV_TERMINATION_LOG: str(termination_log),
        names.ENV_DIE_WITH_PARENT: "1",
        names.ENV_LOCAL_POD: mark(pod, machine),
    }
    # What an outer torchrun or dtj has set is not for this job. gloo would look the host's name up, and may get a dead address.
    outer = {k: v for k, v in machine.environment.items() if k not in names.TORCHRUN_ENV and not k.startswith("DTJ_")}
    inherited = {"GLOO_SOCKET_IFNAME": "lo", **outer}
    words = [_localise(_expand(word, given), mounts) for word in spec["command"]]
    return Container(
        argv=tuple(_argv(words, machine.python)),
        environment={**inherited, **given},
        working_dir=machine.working_dir,
        folders=(pod_dir, *mounts.values()),
        termination_log=termination_log,
        log=machine.run_dir / f"{pod['metadata']['name']}.log",
    )


def mark(pod: Object, machine: Machine) -> str:
    """Value of names.ENV_LOCAL_POD in every process of the pod."""
    return f"{machine.job_uid}/{pod['metadata']['uid']}"


def trainer(pod_spec: Object) -> Object:
    """The container that runs the agent."""
    return find_trainer_container({"spec": pod_spec})


def not_honoured(pod_spec: Object, environment: Mapping[str, str]) -> list[str]:
    """What the template asks for and this machine does not give, in words for the user."""
    main = trainer(pod_spec)
    notes = [f"{field} is ignored" for field in ("nodeSelector", "schedulerName", "runtimeClassName") if pod_spec.get(field)]
    notes += [f"container {c['name']} is not started" for c in pod_spec["containers"] if c is not main]
    for init in pod_spec.get("initContainers") or ():
        if init["name"] != names.INIT_CONTAINER:
            notes.append(f"init container {init['name']} is not run")
    asked = main.get("resources") or {}
    resources = {**(asked.get("requests") or {}), **(asked.get("limits") or {})}
    notes += [f"resource {name}: {amount} is not set apart" for name, amount in resources.items() if "/" in name]
    if main.get("envFrom"):
        notes.append("envFrom is not read: export those variables before dtj run")
    mounted = {mount["name"] for mount in main.get("volumeMounts") or ()}
    for volume in pod_spec.get("volumes") or ():
        kind = volumes.kind(volume)
        if volume["name"] in mounted and kind in _OBJECTS and volume["name"] != names.VOLUME_SECRET:
            notes.append(f"volume {volume['name']} ({kind}) is not mounted")
    for item in main.get("env") or ():
        if _from_cluster(item) and item["name"] in environment:
            notes.append(f"variable {item['name']} is taken from your environment")
    return notes


_OBJECTS = frozenset({"configMap", "secret", "projected", "downwardAPI"})  # volumes made of what only a cluster has


def _mounts(pod: Object, machine: Machine, pod_dir: Path) -> dict[str, Path]:
    """Local folder by mount path, the longest path first."""
    by_name = {volume["name"]: volume for volume in pod["spec"].get("volumes") or ()}
    found: dict[str, Path] = {}
    for mount in trainer(pod["spec"]).get("volumeMounts") or ():
        name = mount["name"]
        volume = by_name.get(name)
        if volume is None or name in HOST_VOLUMES:
            continue
        kind = volumes.kind(volume)
        if name == names.VOLUME_SECRET:
            folder = machine.scratch_dir / "secret"
        elif kind in ("emptyDir", "ephemeral"):
            folder = pod_dir / name
        elif kind in _OBJECTS:
            continue  # not_honoured says so
        else:
            folder = volumes.folder(volume, machine.volumes_dir)
        found[mount["mountPath"].rstrip("/")] = folder / mount.get("subPath", "")
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))


def _localise(text: str, mounts: Mapping[str, Path]) -> str:
    """`/checkpoints/x` or `--out=/checkpoints/x` with the local folder instead of the mount path."""
    option, equals, path = text.partition("=") if text.startswith("-") else ("", "", text)
    for mount, folder in mounts.items():
        if path == mount or path.startswith(mount + "/"):
            return f"{option}{equals}{folder}{path[len(mount) :]}"
    return text


def _argv(words: Sequence[str], python: str) -> list[str]:
    """The agent from where it is installed here, the worker with this interpreter."""
    if list(words[1:3]) != [names.AGENT_PATH, "--"]:
        raise InputError(f"container {names.CONTAINER} does not start the agent but {' '.join(words[:3])!r}")
    worker = list(words[3:])
    if worker and worker[0] in ("python", "python3"):
        worker[0] = python
    return [python, "-m", "dtj_agent", "--", *worker]


def _expand(text: str, known: Mapping[str, str]) -> str:
    """`$(NAME)` as the kubelet expands it: unknown names stay as they are, `$$(NAME)` is a literal `$(NAME)`."""

    def one(match: re.Match[str]) -> str:
        if match[1]:
            return match[0][1:]
        return known.get(match[2], match[0])

    return _REFERENCE.sub(one, text)


def _from_cluster(item: Object) -> bool:
    source = item.get("valueFrom") or {}
    return "secretKeyRef" in source or "configMapKeyRef" in source


def _environment(spec: Object, pod: Object, outer: Mapping[str, str], mounts: Mapping[str, Path]) -> dict[str, str]:
    known: dict[str, str] = {}
    for item in spec.get("env") or ():
        name, source = item["name"], item.get("valueFrom")
        if not source:
            known[name] = _localise(_expand(item.get("value") or "", known), mounts)
        elif "fieldRef" in source:
            known[name] = _field(pod, source["fieldRef"]["fieldPath"], name)
        elif _from_cluster(item) and name in outer:
            known[name] = outer[name]
        elif not any(reference.get("optional") for reference in source.values()):
            kind = next(iter(source))
            raise InputError(f"spec.template: env {name} comes from {kind}, which is the cluster's: export {name} before dtj run")
    return known


def _field(pod: Object, path: str, name: str) -> str:
    """What the downward API gives for this path."""
    if match := re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path):
        return str(pod["metadata"].get(match[1], {}).get(match[2], ""))
    known = {
        "metadata.name": pod["metadata"]["name"],
        "metadata.namespace": pod["metadata"]["namespace"],
        "metadata.uid": pod["metadata"]["uid"],
        "spec.nodeName": pod["spec"]["nodeName"],
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", "default"),
        **dict.fromkeys(("status.podIP", "status.podIPs", "status.hostIP", "status.hostIPs"), LOOPBACK),
    }
    if path not in known:
        raise InputError(f"spec.template: env {name}: fieldPath {path} is not known; write one of {', '.join(known)}")
    return str(known[path])
