"""Exports a checkpoint's model as one file that other programs can read: safetensors, or a plain torch state dict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from dtj_trainer.checkpoint import folder
from dtj_trainer.errors import ConfigError


def export(checkpoint: Path, out: Path, *, part: str = "model") -> int:
    """Writes `part` of a checkpoint to `out`. Returns the count of tensors.

    `checkpoint` is a step's folder, or a job's folder for its newest checkpoint. `out` ends in
    .safetensors, .pt or .pth. Its tensors are whole, whatever the world size of the save. Runs in
    one process. Raises CheckpointInvalid if the checkpoint is torn, ConfigError if it has no such
    part.
    """
    if out.suffix not in (".safetensors", ".pt", ".pth"):
        raise ConfigError(f"{out.name}: write a name that ends in .safetensors, .pt or .pth")
    step, state = read_part(checkpoint, part)
    temporary = out.with_name(out.name + ".part")
    if out.suffix == ".safetensors":
        from safetensors.torch import save_file  # imported only for this format

        save_file(state, temporary, metadata={"step": str(step)})
    else:
        torch.save(state, temporary)
    temporary.rename(out)
    return len(state)


def read_part(checkpoint: Path, part: str = "model") -> tuple[int, dict[str, torch.Tensor]]:
    """Returns the step of a checkpoint, and the whole tensors of one part of it. Raises as `export` does."""
    step, shapes, read = open_part(checkpoint, part)
    return step, {name: read(name) for name in shapes}


def open_part(
    checkpoint: Path, part: str = "model"
) -> tuple[int, Mapping[str, torch.Size], Callable[[str], torch.Tensor]]:
    """Returns the step of a checkpoint, the shapes of one part's tensors by name, and a function that reads one whole.

    Raises as `export` does.
    """
    found = folder.find(checkpoint)
    folder.verify(found, found.manifest.files)
    reader = _Reader(found.path)
    metas = {
        key.removeprefix(f"{part}."): meta
        for key, meta in reader.read_metadata().state_dict_metadata.items()
        if isinstance(meta, TensorStorageMetadata) and key.startswith(f"{part}.")
    }
    if not metas:
        raise ConfigError(f"{found.path.name} has no part {part!r}")

    def read(name: str) -> torch.Tensor:
        whole = torch.empty(metas[name].size, dtype=metas[name].properties.dtype)
        wanted: dict[str, Any] = {f"{part}.{name}": whole}
        load(wanted, storage_reader=reader, no_dist=True)
        return whole

    return found.step, {name: meta.size for name, meta in metas.items()}, read


class _Reader(FileSystemReader):
    """Reads the list of tensors once, and not for each of them."""

    _metadata: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Returns the checkpoint's list of tensors."""
        self._metadata = self._metadata or super().read_metadata(*args, **kwargs)
        return self._metadata
