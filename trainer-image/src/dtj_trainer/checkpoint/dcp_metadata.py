"""Reads the list of tensors of a DCP checkpoint (`.metadata`), without running code that the file holds.

torch.distributed.checkpoint pickles the list, and unpickles it by `pickle.load`, which runs whatever a damaged or
foreign file asks for. Here only the classes that such a list consists of are created.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata

from dtj_trainer.errors import CheckpointInvalid, ConfigError

METADATA_FILE = ".metadata"
_DCP = "torch.distributed.checkpoint"
_ALLOWED = {
    *((f"{_DCP}.metadata", name) for name in (
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties",
        "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    )),
    (f"{_DCP}.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    *(("pathlib", name) for name in ("Path", "PosixPath", "PurePath", "PurePosixPath")),
    *(("pathlib._local", name) for name in ("Path", "PosixPath", "PurePath", "PurePosixPath")),
    ("collections", "OrderedDict"),
    ("builtins", "set"),
    ("builtins", "slice"),
}  # fmt: skip


def read_metadata(checkpoint: Path) -> Metadata:
    """Returns the list of a checkpoint's tensors.

    Raises CheckpointInvalid if the list is missing or damaged, ConfigError if it holds other objects.
    """
    try:
        with (checkpoint / METADATA_FILE).open("rb") as file:
            found = _Unpickler(file).load()
    except FileNotFoundError:
        raise CheckpointInvalid(f"{checkpoint.name} has no {METADATA_FILE}, the list of its tensors") from None
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError, KeyError) as e:
        if isinstance(e, ConfigError):
            raise
        raise CheckpointInvalid(f"{checkpoint.name}: {METADATA_FILE}, the list of its tensors, is damaged: {e}") from e
    if not isinstance(found, Metadata):
        raise CheckpointInvalid(f"{checkpoint.name}: {METADATA_FILE} holds a {type(found).__name__}")
    return found


class _Unpickler(pickle.Unpickler):
    """Creates the listed classes alone."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns a listed class or a dtype. Raises ConfigError for any other."""
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        raise ConfigError(
            f"{METADATA_FILE} holds {module}.{name}, which is no part of a list of tensors: it was not loaded, because "
            "a pickle can run any code"
        )
