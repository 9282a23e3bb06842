"""Checkpoint folders on the volume, without torch: names, manifest, lease, commit.

`DIR/step-%08d/` is complete: its manifest names every file with size and SHA-256, and one rename of
`DIR/.incomplete-step-%08d-a<attempt>/` has created it. A writer that is killed at any instant
therefore leaves either nothing or a whole checkpoint. The checksums find what damages a checkpoint
afterwards.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dtj_contract import names
from dtj_trainer.checkpoint.quarantine import quarantine
from dtj_trainer.errors import CheckpointError, CheckpointInvalid, ConfigError, LeaseLost

_STEP = re.compile(r"step-(\d{8,})$")
MANIFEST_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """One file in the manifest."""

    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """`manifest.json` (contract: Checkpoints)."""

    step: int
    attempt: int
    world_size: int
    time: float
    """Unix seconds of the commit."""
    files: dict[str, FileEntry]
    metrics: dict[str, float] = field(default_factory=dict)
    """The run's metrics at this step, by which `keep_best` ranks checkpoints."""

    def dump(self) -> bytes:
        """Returns the bytes of the file on the volume."""
        files = {name: {"bytes": f.bytes, "sha256": f.sha256} for name, f in sorted(self.files.items())}
        body = {"version": MANIFEST_VERSION, "step": self.step, "attempt": self.attempt, "worldSize": self.world_size}
        return json.dumps(body | {"time": self.time, "metrics": self.metrics, "files": files}, indent=1).encode()

    @classmethod
    def parse(cls, text: bytes) -> Manifest:
        """Reads a manifest.

        Raises CheckpointInvalid if the file is damaged, ConfigError if a newer version of this
        trainer wrote it.
        """
        try:
            body: dict[str, Any] = json.loads(text)
            version = body["version"]
        except (ValueError, KeyError, TypeError) as e:
            raise CheckpointInvalid(f"manifest is damaged: {e!r}") from None
        # A checkpoint of a newer version is whole, so it is not quarantined.
        if isinstance(version, int) and version > MANIFEST_VERSION:
            raise ConfigError(
                f"manifest version {version}, this trainer reads {MANIFEST_VERSION}: use the image that wrote the "
                "checkpoint, or a new checkpoint folder"
            )
        try:
            return cls(
                step=body["step"],
                attempt=body["attempt"],
                world_size=body["worldSize"],
                time=body["time"],
                files={name: FileEntry(bytes=f["bytes"], sha256=f["sha256"]) for name, f in body["files"].items()},
                metrics=body.get("metrics", {}),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise CheckpointInvalid(f"manifest is damaged: {e!r}") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class CommittedCheckpoint:
    """A committed folder whose manifest was read."""

    path: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        """Optimizer steps done when it was saved."""
        return self.manifest.step


def committed(directory: Path) -> list[Path]:
    """Returns the folders `step-*`, newest step first; [] if the directory does not exist."""
    try:
        found = [(int(m[1]), p) for p in directory.iterdir() if (m := _STEP.fullmatch(p.name)) and p.is_dir()]
    except FileNotFoundError:
        return []
    return [p for _, p in sorted(found, reverse=True)]


def read(path: Path) -> CommittedCheckpoint:
    """Reads the manifest of one folder, and checks that every file is there with its size.

    Raises CheckpointInvalid if not, CheckpointError if the volume fails, ConfigError if a newer
    version of this trainer wrote the manifest.
    """
    try:
        manifest = Manifest.parse((path / names.MANIFEST_FILE).read_bytes())
        _check_sizes(path, manifest)
    except OSError as e:
        raise _unreadable(path, e) from None
    return CommittedCheckpoint(path=path, manifest=manifest)


def find(path: Path) -> CommittedCheckpoint:
    """Returns a checkpoint by its own folder, or the newest whole one of a job's folder.

    Raises CheckpointInvalid if there is none, else as `read` does.
    """
    if (path / names.MANIFEST_FILE).is_file():
        return read(path)
    for candidate in committed(path):
        with contextlib.suppress(CheckpointInvalid):
            return read(candidate)
    raise CheckpointInvalid(f"{path} is not a checkpoint and holds none")


def _check_sizes(path: Path, manifest: Manifest) -> None:
    for name, entry in manifest.files.items():
        size = (path / name).stat().st_size
        if size != entry.bytes:
            raise CheckpointInvalid(f"{name} has {size} bytes, the manifest has {entry.bytes}")


def verify(checkpoint: CommittedCheckpoint, share: Iterable[str]) -> None:
    """Verifies the files named in `share`.

    Raises CheckpointInvalid if one differs, CheckpointError if the volume fails.
    """
    for name in share:
        try:
            found = digest(checkpoint.path / name)
        except OSError as e:
            raise _unreadable(checkpoint.path, e) from None
        if found != checkpoint.manifest.files[name]:
            raise CheckpointInvalid(f"{name} does not have the checksum of the manifest")


def _unreadable(checkpoint: Path, error: OSError) -> CheckpointError:
    """Returns CheckpointInvalid for a missing file, CheckpointError for a volume that fails.

    A checkpoint on a volume that fails may be whole, so it is not quarantined.
    """
    file = Path(error.filename or checkpoint).name
    if isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
        return CheckpointInvalid(f"{error.strerror}: {file}")
    return CheckpointError(f"{checkpoint} can't be read now ({error.strerror}: {file}): look at the volume")


def digest(path: Path) -> FileEntry:
    """Returns size and SHA-256 of a file."""
    with path.open("rb") as file:
        sha = hashlib.file_digest(file, "sha256")
        return FileEntry(bytes=file.tell(), sha256=sha.hexdigest())


def check_lease(directory: Path, attempt: int | None) -> None:
    """Raises LeaseLost if the lease file names another attempt.

    No file or no attempt: no fencing (plain torchrun).
    """
    if attempt is None:
        return
    try:
        holder = int((directory / names.LEASE_FILE).read_text())
    except FileNotFoundError:
        return
    except ValueError as e:
        raise LeaseLost(f"the lease file {directory / names.LEASE_FILE} is not a number: {e}") from None
    if holder != attempt:
        raise LeaseLost(f"attempt {holder} owns {directory} now: this worker of attempt {attempt} must not write there")


def write_durably(path: Path, content: bytes) -> None:
    """Writes and syncs a file: content and length are on the volume afterwards.

    The caller renames it and syncs the folder.
    """
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Makes a rename inside `path` durable.

    A volume that can't sync folders (some FUSE) is accepted.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)


def commit(directory: Path, incomplete: Path, manifest: Manifest, *, attempt: int | None) -> Path:
    """Writes the manifest, checks the lease, renames: from then on the checkpoint exists.

    After LeaseLost or OSError it does not exist. Raises CheckpointInvalid if a file that a rank
    wrote is not there: ranks that do not share a folder each report success.
    """
    write_durably(incomplete / names.MANIFEST_FILE, manifest.dump())
    try:
        _check_sizes(incomplete, manifest)
    except FileNotFoundError as e:
        if not incomplete.is_dir():  # the next attempt has swept it
            raise
        name = Path(e.filename).name
        raise CheckpointInvalid(
            f"{name} is not in {incomplete} as rank 0 sees it: all ranks must see the same folder"
        ) from None
    sync_folder(incomplete)
    target = directory / (names.CHECKPOINT_FOLDER % manifest.step)
    check_lease(directory, attempt)
    try:
        incomplete.rename(target)
    except OSError:
        # The step is there already: an earlier attempt committed it and died before it could report
        # that. A step of the same run is as good as this one if it is whole; if not, this one
        # replaces it.
        if not target.is_dir():
            raise
        try:
            verify(kept := read(target), kept.manifest.files)
            shutil.rmtree(incomplete)
        except CheckpointInvalid:
            quarantine(target, manifest.attempt)
            incomplete.rename(target)
    sync_folder(directory)
    return target


def remove(checkpoint: Path, attempt: int) -> None:
    """Removes a committed checkpoint: first its name, so that nobody sees it half-removed, then its files."""
    step = int(checkpoint.name.rsplit("-", 1)[1])
    removed = checkpoint.with_name(names.CHECKPOINT_INCOMPLETE % (step, attempt))
    shutil.rmtree(removed, ignore_errors=True)
    # A removal that fails is retried after the next commit, or swept.
    with contextlib.suppress(OSError):
        checkpoint.rename(removed)
        shutil.rmtree(removed)
