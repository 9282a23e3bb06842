"""Weights to begin a run with: of a checkpoint of ours, or of a file that other programs write."""

from __future__ import annotations

import functools
import json
import logging
import operator
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dtj_trainer.checkpoint import folder
from dtj_trainer.checkpoint.export import open_part
from dtj_trainer.errors import ConfigError

log = logging.getLogger(__name__)
INDEX = "model.safetensors.index.json"
"""The list of the files of a model that has several, as Hugging Face writes it."""
NAMED = 5
"""Names that an error lists."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """Weights in files, read one by one."""

    shapes: Mapping[str, torch.Size]
    """The shape of each tensor, by name."""
    read: Callable[[str], torch.Tensor]
    """Returns a tensor by its name."""

    def __or__(self, other: Weights) -> Weights:
        """Returns the weights of both; those of `other` where both have a name."""
        return Weights(
            shapes={**self.shapes, **other.shapes},
            read=lambda name: other.read(name) if name in other.shapes else self.read(name),
        )


class MetaWeights:
    """Fills the tensors of a model that was built under `torch.device("meta")`, as soon as each has memory."""

    def __init__(self, model: nn.Module, weights: Weights) -> None:
        named = model.state_dict(keep_vars=True)
        self._names = {id(tensor): name for name, tensor in named.items() if name in weights.shapes}
        self._weights = weights

    def __call__(self, tensor: torch.Tensor, made: torch.Tensor) -> None:
        """Copies the weights of `tensor`, which is on the meta device, into `made`."""
        with torch.no_grad():
            made.copy_(self._weights.read(self._names[id(tensor)]))


def load_weights(model: nn.Module, path: Path, *, partial: bool = False) -> MetaWeights | None:
    """Loads weights into a model that is not spread over ranks yet.

    Returns what fills a model on the meta device while it is spread; None for a model with memory, which has
    its weights then.

    Args:
        model: The model. Its parameters and buffers are all on the meta device, or none of them.
        path: A checkpoint of ours or a job's folder for the newest one; a .safetensors, .pt or .pth file; or a
            folder with .safetensors files.
        partial: Load what fits by name and shape, and log the rest.

    Raises ConfigError, which names the weights that do not fit.
    """
    weights = without_prefix(_open(path))
    found, own = weights.shapes, model.state_dict(keep_vars=True)
    on_meta = any(p.is_meta for p in model.parameters())
    extra = sorted(found.keys() - own.keys())
    differ = sorted(name for name in found.keys() & own.keys() if found[name] != own[name].shape)
    fitting = [name for name in found if name in own and name not in differ]

    def place(name: str) -> int:  # tied weights have one place, and need one name
        return id(own[name]) if on_meta else own[name].data_ptr()

    given = {place(name) for name in fitting}
    missing = sorted(name for name in own.keys() - set(fitting) if place(name) not in given)
    problems = [
        f"{text} {listed(names)}"
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
    if on_meta:
        _check_meta(model, path, [*missing, *differ])
    else:
        model.load_state_dict({name: weights.read(name) for name in fitting}, strict=False)
    log.info("began with %d weights of %s%s", len(fitting), path, f"; it has {'; '.join(problems)}" if problems else "")
    return MetaWeights(model, weights) if on_meta else None


def _check_meta(model: nn.Module, path: Path, missing: list[str]) -> None:
    """Raises ConfigError for tensors of a model on the meta device that the file has no values for."""
    saved = model.state_dict(keep_vars=True).keys()
    computed = [name for name, buffer in model.named_buffers() if buffer.is_meta and name not in saved]
    if missing or computed:
        raise ConfigError(
            f"init_from={path}: it has no values for {listed([*missing, *computed])}, which are on the meta device: "
            'build these outside of torch.device("meta")'
        )


def _open(path: Path) -> Weights:
    """Returns the weights of a file or folder. Raises ConfigError if it is not usable."""
    if path.is_dir():
        # A job's folder may hold exports, too.
        is_ours = (path / "manifest.json").is_file() or any(folder.committed(path))
        files = [] if is_ours else _safetensors_of(path)
        if not files:
            _, shapes, read = open_part(path)
            return Weights(shapes=shapes, read=read)
        return functools.reduce(operator.or_, map(_open, files))
    if not path.is_file():
        raise ConfigError(f"init_from={path}: there is no such file or folder")
    if path.suffix == ".safetensors":
        return _open_safetensors(path)
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
    return Weights(shapes={name: tensor.shape for name, tensor in loaded.items()}, read=loaded.__getitem__)


def _open_safetensors(path: Path) -> Weights:
    from safetensors import SafetensorError, safe_open  # imported only for this format

    try:
        file: Any = safe_open(path, "pt")  # mapped: a tensor is read when it is asked for
        shapes = {name: torch.Size(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as e:
        raise ConfigError(f"init_from={path}: it can't be read: {e}") from e
    return Weights(shapes=shapes, read=file.get_tensor)


def _safetensors_of(path: Path) -> list[Path]:
    if (path / INDEX).is_file():
        return [path / name for name in sorted(set(json.loads((path / INDEX).read_text())["weight_map"].values()))]
    return sorted(path.glob("*.safetensors"))


def without_prefix(weights: Weights) -> Weights:
    """Removes what DistributedDataParallel and torch.compile put before the names."""
    removed = ""
    shapes = weights.shapes
    for prefix in ("_orig_mod.", "module."):
        if shapes and all(name.startswith(prefix) for name in shapes):
            shapes = {name.removeprefix(prefix): shape for name, shape in shapes.items()}
            removed += prefix
    return Weights(shapes=shapes, read=lambda name: weights.read(removed + name)) if removed else weights


def listed(names: list[str]) -> str:
    """Returns the first names, and the number of the others."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
