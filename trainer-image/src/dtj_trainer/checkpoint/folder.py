"""A checkpoint folder on the volume, without torch: names, manifest, lease, what is complete, what may go.

`DIR/step-%08d/` is complete: its manifest names every file with size and SHA-256, and it came there by one rename of
`DIR/.incomplete-step-%08d-a<attempt>/`. So a writer killed at any instant leaves either nothing or a whole checkpoint;
the checksums are against what happens to it afterwards.
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
from dtj_trainer.errors import CheckpointError, CheckpointInvalid, ConfigError, LeaseLost

_STEP = re.compile(r"step-(\d{8,})$")
_LEFTOVER = re.compile(r"\.(?:incomplete|torn)-step-\d{8,}-a(\d+)$")
MANIFEST_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """What the manifest says of one file."""

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
    """The run's metrics at this step: what `best` retention looks at."""

    def dump(self) -> bytes:
        """As it stands on the volume."""
        files = {name: {"bytes": f.bytes, "sha256": f.sha256} for name, f in sorted(self.files.items())}
        body = {"version": MANIFEST_VERSION, "step": self.step, "attempt": self.attempt, "worldSize": self.world_size}
        return json.dumps(body | {"time": self.time, "metrics": self.metrics, "files": files}, indent=1).encode()

    @classmethod
    def parse(cls, text: bytes) -> Manifest:
        """Raises CheckpointInvalid when it is damaged, ConfigError when another version of this trainer wrote it."""
        try:
            body: dict[str, Any] = json.loads(text)
            version = body["version"]
        except (ValueError, KeyError, TypeError) as e:
            raise CheckpointInvalid(f"manifest is damaged: {e!r}") from None
        if isinstance(version, int) and version > MANIFEST_VERSION:  # whole, only not for us: it is not put aside for that
            raise ConfigError(
                f"manifest version {version}, this trainer reads {MANIFEST_VERSION}: use the image that wrote the checkpoint, "
                "or a new checkpoint folder"
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
    """A committed folder whose manifest could be read."""

    path: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        """Optimizer steps done when it was made."""
        return self.manifest.step


def committed(directory: Path) -> list[Path]:
    """Folders `step-*`, newest step first; [] if the directory is not there."""
    try:
        found = [(int(m[1]), p) for p in directory.iterdir() if (m := _STEP.fullmatch(p.name)) and p.is_dir()]
    except FileNotFoundError:
        return []
    return [p for _, p in sorted(found, reverse=True)]


def read(path: Path) -> CommittedCheckpoint:
    """The manifest of one folder, and that every file is there with its size. Raises CheckpointInvalid, CheckpointError.

    ConfigError: another version of this trainer wrote it.
    """
    try:
        manifest = Manifest.parse((path / names.MANIFEST_FILE).read_bytes())
        _check_sizes(path, manifest)
    except OSError as e:
        raise _unreadable(path, e) from None
    return CommittedCheckpoint(path=path, manifest=manifest)


def _check_sizes(path: Path, manifest: Manifest) -> None:
    for name, entry in manifest.files.items():
        size = (path / name).stat().st_size
        if size != entry.bytes:
            raise CheckpointInvalid(f"{name} has {size} bytes, the manifest says {entry.bytes}")


def verify(checkpoint: CommittedCheckpoint, share: Iterable[str]) -> None:
    """Checksums of the files named in `share`. Raises CheckpointInvalid, CheckpointError."""
    for name in share:
        try:
            found = digest(checkpoint.path / name)
        except OSError as e:
            raise _unreadable(checkpoint.path, e) from None
        if found != checkpoint.manifest.files[name]:
            raise CheckpointInvalid(f"{name} does not have the checksum of the manifest")


def _unreadable(checkpoint: Path, error: OSError) -> CheckpointError:
    """A file that is not there makes a checkpoint torn. A volume that fails says nothing of it: it is not put aside for that."""
    file = Path(error.filename or checkpoint).name
    if isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
        return CheckpointInvalid(f"{error.strerror}: {file}")
    return CheckpointError(f"{checkpoint} can't be read now ({error.strerror}: {file}): look at the volume")


def digest(path: Path) -> FileEntry:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        sha = hashlib.file_digest(file, "sha256")
        return FileEntry(bytes=file.tell(), sha256=sha.hexdigest())


def check_lease(directory: Path, attempt: int | None) -> None:
    """Raises LeaseLost if the lease file names another attempt. No file or no attempt: no fence (plain torchrun)."""
    if attempt is None:
        return
    try:
        holder = int((directory / names.LEASE_FILE).read_text())
    except FileNotFoundError:
        return
    except ValueError as e:
        raise LeaseLost(f"the lease file {directory / names.LEASE_FILE} is not a number: {e}") from None
    if holder != attempt:
        raise LeaseLost(f"attempt {holder} owns {directory} now, this worker is of attempt {attempt}: it must not write there")


def write_durably(path: Path, content: bytes) -> None:
    """Content and length are on the volume when this returns (the caller renames, and syncs the folder)."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Makes a rename inside `path` durable; a volume that can't sync folders (some FUSE) is taken as it is."""
    fd = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)


def commit(directory: Path, incomplete: Path, manifest: Manifest, *, attempt: int | None) -> Path:
    """Manifest, lease, rename: after this the checkpoint exists. Raises LeaseLost or OSError, and then it does not.

    Raises CheckpointInvalid if a file that a rank wrote is not there: ranks that do not share a folder each report success.
    """
    write_durably(incomplete / names.MANIFEST_FILE, manifest.dump())
    try:
        _check_sizes(incomplete, manifest)
    except FileNotFoundError as e:
        if not incomplete.is_dir():  # the next attempt has swept it
            raise
        name = Path(e.filename).name
        raise CheckpointInvalid(f"{name} is not in {incomplete} as rank 0 sees it: all ranks must see the same folder") from None
    sync_folder(incomplete)
    target = directory / (names.CHECKPOINT_FOLDER % manifest.step)
    check_lease(directory, attempt)
    try:
        incomplete.rename(target)
    except OSError:
        # The step is there already: an attempt before us committed it and died before it could say so. Same step of
        # the same run, so it is as good as ours if it is whole; if not, ours takes its place.
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
    """Takes a committed checkpoint away: first its name, so that none is ever seen half-removed, then its files."""
    step = int(checkpoint.name.rsplit("-", 1)[1])
    going = checkpoint.with_name(names.CHECKPOINT_INCOMPLETE % (step, attempt))
    shutil.rmtree(going, ignore_errors=True)
    with contextlib.suppress(OSError):  # what can't be removed now is tried again after the next commit, or swept
        checkpoint.rename(going)
        shutil.rmtree(going)


def quarantine(torn: Path, attempt: int) -> Path:
    """Renames an invalid checkpoint so that nobody finds it, and a person still can. One that is gone is left gone."""
    step = int(torn.name.rsplit("-", 1)[1])
    target = torn.with_name(names.CHECKPOINT_TORN % (step, attempt))
    shutil.rmtree(target, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):  # the retention of an attempt that is on its way out
        torn.rename(target)
    return target


def sweep(directory: Path, attempt: int) -> None:
    """Removes what attempts before this one left half-written, and torn folders older than the last attempt.

    Done before the first look for a checkpoint, it closes the fence. An older writer that had checked the lease just before
    it was taken can still rename: either before this (and then the checkpoint is found and used), or its folder is gone
    from under that name at once, and the rename fails. So nothing is committed behind the back of an attempt that has begun.
    """
    for path in directory.iterdir():
        match = _LEFTOVER.fullmatch(path.name)
        if match and int(match[1]) < (attempt - 1 if path.name.startswith(".torn") else attempt):
            going = path.with_name(names.CHECKPOINT_INCOMPLETE % (0, attempt))
            shutil.rmtree(going, ignore_errors=True)
            with contextlib.suppress(FileNotFoundError):
                path.rename(going)
                shutil.rmtree(going, ignore_errors=True)
