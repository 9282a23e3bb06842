"""Which folder stands for a volume that outlives its pod, and who may write there."""

from __future__ import annotations

import contextlib
import fcntl
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from dtj.errors import InputError, LocalRunError
from dtj_contract import names
from dtj_core.api import Spec
from dtj_core.plan.model import Object

_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")


def kind(volume: Object) -> str:
    """`persistentVolumeClaim`, `emptyDir`, `nfs`, …: the one key of a pod's volume beside its name."""
    return next((key for key in volume if key != "name"), "emptyDir")


def folder(volume: Object, volumes_dir: Path) -> Path:
    """`<volumes dir>/<claim>` for a claim, the path itself for a hostPath (this machine is the node), else by volume name."""
    source = kind(volume)
    if source == "hostPath":
        return Path(volume[source]["path"])
    return volumes_dir / plain("claimName", volume[source].get("claimName", volume["name"]))


def plain(field: str, name: object) -> str:
    """`name`, where it is one as Kubernetes takes it: no path that leads out of a folder. Raises InputError."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise InputError(f"{field} {name!r}: write a name of a-z, 0-9, '-' and '.', as Kubernetes asks for")


def checkpoint_dir(spec: Spec, namespace: str, name: str, volumes_dir: Path) -> Path | None:
    """The job's own folder on its checkpoint volume; None if it has none."""
    if spec.checkpoint is None:
        return None
    wanted = spec.checkpoint.volume
    volume: Object = {"name": names.VOLUME_CHECKPOINT}
    if wanted.claim_name:
        volume["persistentVolumeClaim"] = {"claimName": wanted.claim_name}
    elif wanted.host_path:
        volume["hostPath"] = {"path": wanted.host_path.path}
    else:
        volume["other"] = {}
    return folder(volume, volumes_dir) / namespace / name


def newest_step(checkpoint: Path) -> int | None:
    """Step of the newest complete checkpoint in a job's folder; None if there is none."""
    found = [int(path.parent.name.removeprefix("step-")) for path in checkpoint.glob("step-*/manifest.json")]
    return max(found, default=None)


def is_used(checkpoint: Path) -> bool:
    """Whether an earlier run left anything in a job's folder: a checkpoint, a script's own file, the attempts' count."""
    return checkpoint.is_dir() and any(checkpoint.iterdir())


def clear(checkpoint: Path, volumes_dir: Path) -> None:
    """Removes a job's folder with all that earlier runs have left in it. Raises InputError and LocalRunError.

    Only `<volumes dir>/<claim>/<namespace>/<job>` is ever removed: nothing on a hostPath, and nothing behind a link.
    """
    claim = checkpoint.parent.parent
    if claim.parent != volumes_dir:
        raise InputError(f"--fresh removes nothing outside {volumes_dir}: remove {checkpoint} yourself, or leave --fresh out")
    if checkpoint.resolve() != claim.resolve() / checkpoint.parent.name / checkpoint.name:
        raise InputError(f"--fresh removes nothing behind a link: {checkpoint} is {checkpoint.resolve()}; remove it yourself")
    try:
        shutil.rmtree(checkpoint)
    except OSError as error:
        raise LocalRunError(f"--fresh can't remove {error.filename}: {error.strerror}") from error


@contextlib.contextmanager
def held(checkpoint: Path | None) -> Iterator[None]:
    """Keeps a second run of the same job away from its checkpoints: on a cluster the job's name does. Raises LocalRunError."""
    if checkpoint is None:
        yield
        return
    try:
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LocalRunError(f"can't make the checkpoint folder {error.filename}: {error.strerror}; see --volumes-dir") from error
    with (checkpoint.parent / f".{checkpoint.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel gives it back when this process ends, however it does
        except BlockingIOError:
            message = f"another dtj run of this job writes to {checkpoint}: wait for it, or give this one another --volumes-dir"
            raise LocalRunError(message) from None
        yield
