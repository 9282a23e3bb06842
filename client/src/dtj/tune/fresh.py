"""`dtj tune --fresh`: removes what an earlier sweep left on this machine, so that no trial resumes from it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from dtj import jobfile
from dtj.errors import LocalRunError
from dtj.local import volumes
from dtj.tune import render
from dtj.tune.local_jobs import LocalTrialJobs
from dtj.tune.spec import SweepDocument
from dtj_core.plan.model import Object


def clear(folder: Path, sweep: SweepDocument) -> None:
    """Removes the checkpoints of the trials in the folder, then everything in it but the lock.

    Raises LocalRunError if trials of a killed sweep still run, or if the new trials would find checkpoints of others.
    """
    if active := LocalTrialJobs(folder, "").active():
        numbers = ", ".join(map(str, active))
        raise LocalRunError(
            f"--fresh: trials {numbers} of a killed dtj tune still run: run `dtj tune` without --fresh, and stop it"
        )
    jobs = [jobfile.read_documents(str(path))[0] for path in sorted((folder / "trials").glob("*/job.yaml"))]
    # Those in the sweep's folder are removed with it.
    own = [place for job in jobs if (place := _on_host(job)) is not None and volumes.is_used(place)]
    removed = {place.resolve() for place in own}
    others = [place for place in _found_by(sweep) if place.resolve() not in removed]
    if others:
        more = f" and {len(others) - 1} more like it" if others[1:] else ""
        raise LocalRunError(
            f"--fresh: {others[0]}{more}: checkpoints of no trial in {folder}, from which trials would resume: remove "
            "them yourself, or rename the sweep"
        )
    for place in own:
        with volumes.held(place):
            volumes.clear(place, place.parent.parent.parent)  # the hostPath stands for a claim
    for path in folder.iterdir():
        if path.name == "lock":
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _found_by(sweep: SweepDocument) -> list[Path]:
    """Returns the folders on the sweep's hostPath that hold anything, and have the name of a trial."""
    first = _on_host(render.sample(sweep))
    if first is None or not first.parent.is_dir():
        return []
    name = re.compile(re.escape(sweep.name) + r"-\d{4,}")
    return sorted(path for path in first.parent.iterdir() if name.fullmatch(path.name) and volumes.is_used(path))


def _on_host(job: Object) -> Path | None:
    """Returns a trial's folder on a hostPath. None: it has none, or one in the sweep's folder."""
    volume = (job["spec"].get("checkpoint") or {}).get("volume") or {}
    if not volume.get("hostPath"):
        return None
    namespace = volumes.plain("metadata.namespace", job["metadata"].get("namespace", "default"))
    name: str = job["metadata"]["name"]
    return Path(volume["hostPath"]["path"]) / namespace / name
