"""Finds the checkpoint that a folder means. Its files are read without running code that they hold.

Three kinds of checkpoints are read: those of the Trainer and of State (a manifest, sharded tensors), those that a
script wrote by torch.distributed.checkpoint, and those of `dtj_trainer.rank.save` with one file of weights.
"""

from __future__ import annotations

import logging
import pickle
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dtj_contract import names
from dtj_trainer.checkpoint import folder
from dtj_trainer.checkpoint.dcp_metadata import METADATA_FILE
from dtj_trainer.checkpoint.export import open_part, open_tensors
from dtj_trainer.checkpoint.weights import Weights, without_prefix
from dtj_trainer.checkpoint.write import SHARED_FILE
from dtj_trainer.errors import CheckpointInvalid, ConfigError

log = logging.getLogger(__name__)
FILES = (".safetensors", ".pt", ".pth", ".bin")
_INCOMPLETE = ".incomplete-"
_STEP = re.compile(r"step-(\d+)$")
_FOREIGN = re.compile(r"GLOBAL (\S+)")
"""The object that torch.load refuses with `weights_only`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One checkpoint, of which no tensor is read yet."""

    step: int | None
    """None: the folder's name has no step."""
    job: str
    """The name of the folder that holds the checkpoint, which is the job's."""
    weights: Weights

    def __str__(self) -> str:
        return f"step {self.step} of {self.job}" if self.step is not None else self.job

    @property
    def metadata(self) -> dict[str, str]:
        """Step and job, for the exported file."""
        return {"job": self.job} | ({"step": str(self.step)} if self.step is not None else {})


def find_source(given: Path, part: str) -> Source:
    """Returns a checkpoint by its own folder, or the newest complete one of a job's folder.

    Raises CheckpointInvalid if there is none, or if the named one is torn; ConfigError if it has no such part.
    """
    if not given.is_dir():
        raise ConfigError(f"{given}: there is no such folder; name a job's folder of checkpoints, or one checkpoint")
    given = given.resolve()
    if given.name.startswith(_INCOMPLETE):
        raise CheckpointInvalid(
            f"{given} is half-written: its writer ended before it was complete; name {given.parent} for its newest "
            "complete checkpoint"
        )
    candidates = folder.committed(given)
    if _is_checkpoint(given) or not candidates:
        return _open(given, part)
    for candidate in candidates:
        try:
            return _open(candidate, part)
        except CheckpointInvalid as e:
            log.warning("%s is skipped: %s", candidate.name, e)
    raise CheckpointInvalid(f"{given} holds no complete checkpoint: each of its {len(candidates)} is damaged")


def _is_checkpoint(path: Path) -> bool:
    return any((path / name).is_file() for name in (names.MANIFEST_FILE, SHARED_FILE, METADATA_FILE))


def _open(path: Path, part: str) -> Source:
    named = _STEP.search(path.name)
    step = int(named[1]) if named else None
    if (path / names.MANIFEST_FILE).is_file():
        step, shapes, read = open_part(path, part)
        weights = Weights(shapes=shapes, read=read)
    elif (path / SHARED_FILE).is_file():
        raise CheckpointInvalid(f"{path} is half-written: it has no {names.MANIFEST_FILE}")
    elif (path / METADATA_FILE).is_file():
        shapes, read = open_tensors(path, part)
        weights = Weights(shapes=shapes, read=read)
    else:
        weights = _open_file(path, part)
    job = path.parent.name if named else path.name
    return Source(step=step, job=job, weights=without_prefix(weights))


def _open_file(path: Path, part: str) -> Weights:
    """Opens the one file of weights in a folder."""
    files = sorted(file for file in path.iterdir() if file.suffix in FILES and file.is_file())
    if not files:
        if any(path.glob("*.distcp")):
            raise CheckpointInvalid(f"{path} is half-written: it has no {METADATA_FILE}, the list of its tensors")
        half = sorted(each.name for each in path.glob(f"{_INCOMPLETE}*"))
        text = f"; half-written: {', '.join(half[:3])}" if half else ""
        raise CheckpointInvalid(f"{path} is not a checkpoint and holds no complete one{text}")
    if len(files) > 1:
        raise ConfigError(f"{path} has several files of weights: {', '.join(file.name for file in files[:5])}")
    (file,) = files
    try:
        state = _load(file, part)
    except (RuntimeError, OSError, pickle.UnpicklingError, EOFError, ValueError) as e:
        if isinstance(e, ConfigError):
            raise
        if foreign := _FOREIGN.search(str(e)):
            raise ConfigError(
                f"{file} holds {foreign[1]}, which is no weight: it was not loaded, because a pickle can run any code; "
                "save tensors alone, such as torch.save(model.state_dict(), ...)"
            ) from e
        raise CheckpointInvalid(f"{file} can't be read: {str(e).splitlines()[0]}") from e
    return Weights(shapes={name: tensor.shape for name, tensor in state.items()}, read=state.__getitem__)


def _load(file: Path, part: str) -> dict[str, torch.Tensor]:
    if file.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(file)
        except SafetensorError as e:
            raise ValueError(str(e)) from e
    loaded: Any = torch.load(file, map_location="cpu", weights_only=True)
    for key in (part, "state_dict"):
        if key and isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
            break
    if not isinstance(loaded, dict) or not loaded or not all(isinstance(one, torch.Tensor) for one in loaded.values()):
        keys = ", ".join(map(str, loaded)) if isinstance(loaded, dict) else type(loaded).__name__
        raise ConfigError(f"{file} has no part {part!r} of tensors; it has {keys[:200] or 'nothing'}")
    return loaded
