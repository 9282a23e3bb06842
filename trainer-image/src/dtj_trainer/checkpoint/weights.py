"""Weights to begin a run with: of a checkpoint of ours, or of a file that other programs write."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dtj_trainer.checkpoint import folder
from dtj_trainer.checkpoint.export import read_part
from dtj_trainer.errors import ConfigError

log = logging.getLogger(__name__)
INDEX = "model.safetensors.index.json"
"""The list of the files of a model that has several, as Hugging Face writes it."""
NAMED = 5
"""Names that an error lists."""


def load_weights(model: nn.Module, path: Path, *, partial: bool = False) -> None:
    """Loads weights into a model that is not spread over ranks yet.

    Args:
        model: The model, with memory of its own.
        path: A checkpoint of ours or a job's folder for the newest one; a .safetensors, .pt or .pth file; or a
            folder with .safetensors files.
        partial: Load what fits by name and shape, and log the rest.

    Raises ConfigError, which names the weights that do not fit.
    """
    if any(p.is_meta for p in model.parameters()):
        raise ConfigError("init_from does not work with a model on the meta device: build it on the CPU")
    found = _without_prefix(_read(path))
    own = model.state_dict()
    extra = sorted(found.keys() - own.keys())
    differ = sorted(name for name in found.keys() & own.keys() if found[name].shape != own[name].shape)
    fitting = {name: tensor for name, tensor in found.items() if name in own and name not in differ}
    given = {own[name].data_ptr() for name in fitting}
    missing = sorted(name for name in own.keys() - fitting.keys() if own[name].data_ptr() not in given)  # not the tied
    problems = [
        f"{text} {_listed(names)}"
        for text, names in (
            ("no weights for", [name for name in missing if name not in differ]),
            ("other shapes of", differ),
            ("unknown weights", extra),
        )
        if names
    ]
    if problems and (not partial or not fitting):
        raise ConfigError(
            f"init_from={path}: it has {'; '.join(problems)}: write a file of this model"
            + ("" if partial else ", or init_partial: true to load what fits")
        )
    model.load_state_dict(fitting, strict=False)
    log.info("began with %d weights of %s%s", len(fitting), path, f"; it has {'; '.join(problems)}" if problems else "")


def _read(path: Path) -> dict[str, torch.Tensor]:
    if path.is_dir():
        # A job's folder may hold exports, too.
        is_ours = (path / "manifest.json").is_file() or any(folder.committed(path))
        files = [] if is_ours else _safetensors_of(path)
        return {name: tensor for file in files for name, tensor in _read(file).items()} if files else read_part(path)[1]
    if not path.is_file():
        raise ConfigError(f"init_from={path}: there is no such file or folder")
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError  # imported only for this format
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except SafetensorError as e:
            raise ConfigError(f"init_from={path}: it can't be read: {e}") from e
    if path.suffix not in (".pt", ".pth", ".bin"):
        raise ConfigError(f"init_from={path}: write a checkpoint's folder, or a .safetensors, .pt or .pth file")
    try:
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError) as e:
        raise ConfigError(f"init_from={path}: it can't be read: {str(e).splitlines()[0]}") from e
    for key in ("model", "state_dict"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not all(isinstance(each, torch.Tensor) for each in loaded.values()):
        raise ConfigError(f"init_from={path}: it holds no state dict of tensors")
    return loaded


def _safetensors_of(path: Path) -> list[Path]:
    if (path / INDEX).is_file():
        return [path / name for name in sorted(set(json.loads((path / INDEX).read_text())["weight_map"].values()))]
    return sorted(path.glob("*.safetensors"))


def _without_prefix(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Removes what DistributedDataParallel and torch.compile put before the names."""
    for prefix in ("_orig_mod.", "module."):
        if weights and all(name.startswith(prefix) for name in weights):
            weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
    return dict(weights)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
