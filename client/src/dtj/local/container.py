"""Translates the `trainer` container of a pod template into a process of this machine. Pure.

The pod template is the same as on a cluster. Its image becomes this Python, its volumes become
folders, and its addresses become loopback. A mount path at the start of an argument or of an
environment value becomes the folder that stands for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dtj.errors import InputError
from dtj.local import volumes
from dtj.local.loopback import LOOPBACK
from dtj_contract import names
from dtj_core.api import find_trainer_container
from dtj_core.plan.model import Object

# /tmp and /dev/shm are the machine's own.
HOST_VOLUMES = frozenset({names.VOLUME_AGENT, names.VOLUME_TMP, names.VOLUME_SHM})
_REFERENCE = re.compile(r"\$(\$)?\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)")


@dataclass(frozen=True, kw_only=True)
class HostEnvironment:
    """The resources of this machine that replace the cluster; the same for all pods of a run."""

    job_uid: str
    python: str
    """The interpreter that replaces the image."""
    node: str
    run_dir: Path
    """Folder of the files that outlive the run: logs and status.json."""
    scratch_dir: Path
    """Folder of the files that end with the pods: emptyDirs, the Secret.

    Its path is short, because a unix socket's path has at most 107 bytes.
    """
    volumes_dir: Path
    """Folder with a folder for every persistent volume claim."""
    working_dir: Path
    environment: Mapping[str, str]
    """Environment of dtj; a container inherits it as it would inherit the image's."""
    address: str = LOOPBACK
    """The pods' address."""


@dataclass(frozen=True, kw_only=True)
class LocalContainer:
    """A process to start."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    working_dir: Path
    folders: tuple[Path, ...]
    """Folders that must exist before the process starts."""
    termination_log: Path
    log: Path | None
    """File of the output; None: the output of dtj."""


def container(pod: Object, host: HostEnvironment, ports: Sequence[int]) -> LocalContainer:
    """Returns the agent of this pod as a local process.

    `ports` holds the agents' ports by ordinal. Raises InputError where the template uses a value
    that only a cluster has.
    """
    addresses = [f"{LOOPBACK}:{port}" for port in ports]
    ordinal = int(pod["metadata"]["labels"][names.LABEL_POD_INDEX])
    own = {
        names.ENV_PEERS: ",".join(addresses),
        names.ENV_LISTEN: addresses[ordinal],
        names.ENV_DIE_WITH_PARENT: str(os.getpid()),
    }
    # Without an interface name gloo would resolve the host's name, perhaps to a dead address.
    inherited = {"GLOO_SOCKET_IFNAME": "lo", **host.environment}
    started = process(pod, replace(host, environment=inherited), own)
    return replace(started, log=host.run_dir / f"{pod['metadata']['name']}.log")


def process(pod: Object, host: HostEnvironment, own: Mapping[str, str]) -> LocalContainer:
    """Returns the agent of this pod as a process that writes to dtj's output.

    `own`: variables of this pod that take the place of the template's. Raises InputError as `container` does.
    """
    spec = trainer(pod["spec"])
    ordinal = pod["metadata"]["labels"][names.LABEL_POD_INDEX]
    pod_dir = host.scratch_dir / f"{ordinal}-{pod['metadata']['uid'][:8]}"
    mounts = _mounts(pod, host, pod_dir)
    termination_log = pod_dir / "termination-log"
    given = _environment(spec, pod, host, mounts)
    given |= {
        names.ENV_TERMINATION_LOG: str(termination_log),
        names.ENV_LOCAL_POD: pod_tag(pod, host),
        **own,
    }
    # Variables of an outer torchrun or dtj do not apply to this job.
    outer = {k: v for k, v in host.environment.items() if k not in names.TORCHRUN_ENV and not k.startswith("DTJ_")}
    command = [_localise(_expand(argument, given), mounts) for argument in spec["command"]]
    return LocalContainer(
        argv=tuple(_argv(command, host.python)),
        environment={**outer, **given},
        working_dir=host.working_dir,
        folders=(pod_dir, *mounts.values()),
        termination_log=termination_log,
        log=None,
    )


def pod_tag(pod: Object, host: HostEnvironment) -> str:
    """Returns the value of names.ENV_LOCAL_POD in every process of the pod."""
    return f"{host.job_uid}/{pod['metadata']['uid']}"


def trainer(pod_spec: Object) -> Object:
    """Returns the container that runs the agent."""
    return find_trainer_container({"spec": pod_spec})


def ignored_fields(pod_spec: Object, environment: Mapping[str, str]) -> list[str]:
    """Returns a notice for each field of the template that this machine does not support."""
    main = trainer(pod_spec)
    notes = [f"{field} is ignored" for field in _IGNORED if pod_spec.get(field)]
    notes += [f"container {c['name']} is not started" for c in pod_spec.get("containers") or () if c is not main]
    for init in pod_spec.get("initContainers") or ():
        if init["name"] != names.INIT_CONTAINER:
            notes.append(f"init container {init['name']} is not run")
    asked = main.get("resources") or {}
    resources = {**(asked.get("requests") or {}), **(asked.get("limits") or {})}
    notes += [f"resource {name}: {amount} is not reserved" for name, amount in resources.items() if "/" in name]
    if main.get("envFrom"):
        notes.append("envFrom is ignored: export those variables before dtj run")
    mounted = {mount["name"] for mount in main.get("volumeMounts") or ()}
    for volume in pod_spec.get("volumes") or ():
        kind = volumes.kind(volume)
        if volume["name"] in mounted and kind in _OBJECTS and volume["name"] != names.VOLUME_SECRET:
            notes.append(f"volume {volume['name']} ({kind}) is not mounted")
    for item in main.get("env") or ():
        if _from_cluster(item) and item["name"] in environment:
            notes.append(f"variable {item['name']} is taken from your environment")
    return notes


_IGNORED = ("nodeSelector", "tolerations", "schedulerName", "runtimeClassName", "priorityClassName", "imagePullSecrets")
_OBJECTS = frozenset({"configMap", "secret", "projected", "downwardAPI"})  # volumes of cluster objects


def _mounts(pod: Object, host: HostEnvironment, pod_dir: Path) -> dict[str, Path]:
    """Returns the local folder of each mount path, the longest path first."""
    by_name = {volume["name"]: volume for volume in pod["spec"].get("volumes") or ()}
    found: dict[str, Path] = {}
    for mount in trainer(pod["spec"]).get("volumeMounts") or ():
        name = mount["name"]
        volume = by_name.get(name)
        if volume is None or name in HOST_VOLUMES:
            continue
        kind = volumes.kind(volume)
        if name == names.VOLUME_SECRET:
            folder = host.scratch_dir / "secret"
        elif kind in ("emptyDir", "ephemeral"):
            folder = pod_dir / name
        elif kind in _OBJECTS:
            continue  # ignored_fields reports it
        else:
            folder = volumes.folder(volume, host.volumes_dir)
        found[mount["mountPath"].rstrip("/")] = folder / mount.get("subPath", "")
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))


def _localise(text: str, mounts: Mapping[str, Path]) -> str:
    """Replaces the mount path in `/checkpoints/x` or `--out=/checkpoints/x` by its local folder."""
    option, equals, path = text.partition("=") if text.startswith("-") else ("", "", text)
    for mount, folder in mounts.items():
        if path == mount or path.startswith(mount + "/"):
            return f"{option}{equals}{folder}{path[len(mount) :]}"
    return text


def _argv(command: Sequence[str], python: str) -> list[str]:
    """Returns the command: the agent that is installed here, and the worker with this interpreter."""
    if list(command[1:3]) != [names.AGENT_PATH, "--"]:
        raise InputError(f"container {names.CONTAINER} must start the agent, not {' '.join(command[:3])!r}")
    worker = list(command[3:])
    if worker and worker[0] in ("python", "python3"):
        worker[0] = python
    return [python, "-m", "dtj_agent", "--", *worker]


def _expand(text: str, known: Mapping[str, str]) -> str:
    """Expands `$(NAME)` as the kubelet does.

    Unknown names stay unchanged, and `$$(NAME)` is a literal `$(NAME)`.
    """

    def replacement(match: re.Match[str]) -> str:
        if match[1]:
            return match[0][1:]
        return known.get(match[2], match[0])

    return _REFERENCE.sub(replacement, text)


def _from_cluster(item: Object) -> bool:
    source = item.get("valueFrom") or {}
    return "secretKeyRef" in source or "configMapKeyRef" in source


def _environment(spec: Object, pod: Object, host: HostEnvironment, mounts: Mapping[str, Path]) -> dict[str, str]:
    known: dict[str, str] = {}
    outer = host.environment
    for item in spec.get("env") or ():
        name, source = item["name"], item.get("valueFrom")
        if not source:
            known[name] = _localise(_expand(item.get("value") or "", known), mounts)
        elif "fieldRef" in source:
            known[name] = _field(pod, source["fieldRef"]["fieldPath"], name, host.address)
        elif _from_cluster(item) and name in outer:
            known[name] = outer[name]
        elif not any(reference.get("optional") for reference in source.values()):
            kind = next(iter(source))
            raise InputError(f"env {name} comes from {kind}, which only a cluster has: export {name} before dtj run")
    return known


def _field(pod: Object, path: str, name: str, address: str) -> str:
    """Returns the value that the downward API would give for this path."""
    if match := re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path):
        return str(pod["metadata"].get(match[1], {}).get(match[2], ""))
    known = {
        "metadata.name": pod["metadata"]["name"],
        "metadata.namespace": pod["metadata"]["namespace"],
        "metadata.uid": pod["metadata"]["uid"],
        "spec.nodeName": pod["spec"]["nodeName"],
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", "default"),
        **dict.fromkeys(("status.podIP", "status.podIPs", "status.hostIP", "status.hostIPs"), address),
    }
    if path not in known:
        raise InputError(f"env {name}: unknown fieldPath {path}; write one of {', '.join(known)}")
    return str(known[path])
