"""The folders that stand for volumes that outlive their pod, and the lock that protects them."""

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
from dtj_core.api.claim_template import claim_name
from dtj_core.plan.model import Object

_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")


def kind(volume: Object) -> str:
    """Returns `persistentVolumeClaim`, `emptyDir`, `nfs`, …

    The kind is the only key of a pod's volume beside its name.
    """
    return next((key for key in volume if key != "name"), "emptyDir")


def folder(volume: Object, volumes_dir: Path) -> Path:
    """Returns the folder of a volume.

    A claim is `<volumes dir>/<claim>`, a hostPath is the path itself (this machine is the node),
    and any other volume is a folder of the volume's name.
    """
    source = kind(volume)
    if source == "hostPath":
        return Path(volume[source]["path"])
    return volumes_dir / plain("claimName", volume[source].get("claimName", volume["name"]))


def plain(field: str, name: object) -> str:
    """Returns `name` if Kubernetes would accept it, so that no path leads out of a folder.

    Raises InputError.
    """
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise InputError(f"{field} {name!r}: write a name of a-z, 0-9, '-' and '.', as Kubernetes requires")


def checkpoint_dir(spec: Spec, namespace: str, name: str, volumes_dir: Path) -> Path | None:
    """Returns the job's own folder on its checkpoint volume, or None if it has none."""
    wanted = spec.checkpoint.volume if spec.checkpoint else None
    if wanted is None:
        return None
    volume: Object = {"name": names.VOLUME_CHECKPOINT}
    if wanted.claim_name:
        volume["persistentVolumeClaim"] = {"claimName": wanted.claim_name}
    elif wanted.claim_template:
        volume["persistentVolumeClaim"] = {"claimName": claim_name(name)}
    elif wanted.host_path:
        volume["hostPath"] = {"path": wanted.host_path.path}
    else:
        volume["other"] = {}
    return folder(volume, volumes_dir) / namespace / name


def newest_step(checkpoint: Path) -> int | None:
    """Returns the step of the newest complete checkpoint in a job's folder, or None."""
    found = [int(path.parent.name.removeprefix("step-")) for path in checkpoint.glob("step-*/manifest.json")]
    return max(found, default=None)


def is_used(checkpoint: Path) -> bool:
    """Returns whether an earlier run left anything in a job's folder.

    Examples are a checkpoint, a file of the script and the count of attempts.
    """
    return checkpoint.is_dir() and any(checkpoint.iterdir())


def clear(checkpoint: Path, volumes_dir: Path) -> None:
    """Removes a job's folder with everything that earlier runs left there.

    Raises InputError and LocalRunError. Removes only `<volumes dir>/<claim>/<namespace>/<job>`:
    nothing on a hostPath, and nothing behind a link.
    """
    claim = checkpoint.parent.parent
    if claim.parent != volumes_dir:
        raise InputError(
            f"--fresh removes nothing outside {volumes_dir}: remove {checkpoint} yourself, or omit --fresh"
        )
    if checkpoint.resolve() != claim.resolve() / checkpoint.parent.name / checkpoint.name:
        raise InputError(
            f"--fresh removes nothing behind a link: {checkpoint} is {checkpoint.resolve()}; remove it yourself"
        )
    try:
        shutil.rmtree(checkpoint)
    except OSError as error:
        raise LocalRunError(f"--fresh can't remove {error.filename}: {error.strerror}") from error


@contextlib.contextmanager
def held(checkpoint: Path | None) -> Iterator[None]:
    """Locks the job's checkpoints against a second run of the same job.

    On a cluster the job's name prevents such a run. Raises LocalRunError.
    """
    if checkpoint is None:
        yield
        return
    try:
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LocalRunError(
            f"can't create the checkpoint folder {error.filename}: {error.strerror}; see --volumes-dir"
        ) from error
    with (checkpoint.parent / f".{checkpoint.name}.lock").open("w") as lock:
        try:
            # The kernel releases the lock when this process ends, for whatever reason.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            remedy = "wait for that run, or give this one another --volumes-dir"
            raise LocalRunError(f"another dtj run of this job writes to {checkpoint}: {remedy}") from None
        yield
