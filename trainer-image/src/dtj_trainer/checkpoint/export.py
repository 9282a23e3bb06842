"""Exports a checkpoint's model as one file that other programs can read: safetensors, or a plain torch state dict."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from dtj_trainer.checkpoint import folder
from dtj_trainer.checkpoint.dcp_metadata import read_metadata
from dtj_trainer.errors import CheckpointInvalid, ConfigError


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
    if out.suffix == ".safetensors":
        write_safetensors(state, out, {"step": str(step)})
    else:
        temporary = out.with_name(out.name + ".part")
        torch.save(state, temporary)
        temporary.rename(out)
    return len(state)


def write_safetensors(state: Mapping[str, torch.Tensor], out: Path, metadata: Mapping[str, str]) -> None:
    """Writes tensors by one rename, with `metadata`, torch's version and the mark of a torch file.

    Names that share memory, as those of a tied weight, are each written whole: the format has no shared
    memory, and a strict load asks for every name.
    """
    from safetensors.torch import save_file  # imported only for this format

    temporary = out.with_name(out.name + ".part")
    save_file(_unshared(state), temporary, metadata={"format": "pt", "torch": str(torch.__version__), **metadata})
    temporary.rename(out)


def _unshared(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the tensors, each contiguous and with memory of its own."""
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in state.items():
        place = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone() if place in seen else tensor
        found[name] = found[name].contiguous()
        seen.add(place)
    return found


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
    return found.step, *open_tensors(found.path, part)


def open_tensors(checkpoint: Path, part: str) -> tuple[Mapping[str, torch.Size], Callable[[str], torch.Tensor]]:
    """Returns the shapes of one part's tensors in a DCP folder, and a function that reads one whole.

    Raises ConfigError if there is no such part ("" is the whole checkpoint), CheckpointInvalid if a file is missing.
    """
    reader = _Reader(checkpoint)
    known = reader.read_metadata()
    for file in sorted({entry.relative_path for entry in (known.storage_data or {}).values()}):
        if not (checkpoint / file).is_file():
            raise CheckpointInvalid(f"{checkpoint.name} lacks {file}, which holds tensors")
    prefix = f"{part}." if part else ""
    saved = {key: meta for key, meta in known.state_dict_metadata.items() if isinstance(meta, TensorStorageMetadata)}
    metas = {key.removeprefix(prefix): meta for key, meta in saved.items() if key.startswith(prefix)}
    if not metas:
        parts = ", ".join(sorted({key.partition(".")[0] for key in saved})[:10])
        if (checkpoint / "zero_to_fp32.py").is_file():
            raise ConfigError(
                f"{checkpoint.name} was saved by DeepSpeed: write python {checkpoint}/zero_to_fp32.py {checkpoint} OUT"
            )
        raise ConfigError(f"{checkpoint.name} has no part {part!r}; it has {parts or 'no tensors'}")

    def read(name: str) -> torch.Tensor:
        whole = torch.empty(metas[name].size, dtype=metas[name].properties.dtype)
        wanted: dict[str, Any] = {f"{prefix}{name}": whole}
        with warnings.catch_warnings():
            # DCP warns that there is no process group, which is meant here.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
            load(wanted, storage_reader=reader, no_dist=True)
        return whole

    return {name: meta.size for name, meta in metas.items()}, read


class _Reader(FileSystemReader):
    """Reads the list of tensors once, and not for each of them."""

    _metadata: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Returns the checkpoint's list of tensors."""
        if self._metadata is None:
            self._metadata = read_metadata(Path(self.path))
            self._metadata.storage_meta = self._metadata.storage_meta or StorageMeta()
            self._metadata.storage_meta.load_id = self.load_id
        return self._metadata
