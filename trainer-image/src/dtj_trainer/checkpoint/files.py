"""Files whose size and SHA-256 are computed while they are written: nothing is read again for the manifest."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystem

from dtj_trainer.checkpoint.folder import FileEntry


class HashedFile(io.BufferedWriter):
    """A new file, hashed while it is written.

    hashlib and write release the GIL, so the training thread keeps running.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "wb"))
        self._sha = hashlib.sha256()
        self._bytes = 0

    def write(self, content: Any, /) -> int:
        """Writes all of `content`, or raises OSError."""
        self._sha.update(content)
        self._bytes += (written := super().write(content))
        return written

    def seekable(self) -> bool:
        """Returns False: the hash is of bytes in the order of writing."""
        return False

    @property
    def entry(self) -> FileEntry:
        """Size and hash for the manifest."""
        return FileEntry(bytes=self._bytes, sha256=self._sha.hexdigest())


class HashedFiles(FileSystem):
    """The file system of a torch FileSystemWriter (its `fs`).

    `entries` has every file written through it, by name.
    """

    def __init__(self) -> None:
        self.entries: dict[str, FileEntry] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """Opens a new file to write, which DCP syncs."""
        if mode != "wb":
            raise ValueError(f"mode {mode!r}: only new files are written here")
        with HashedFile(Path(path)) as file:
            yield file
        self.entries[Path(path).name] = file.entry

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Renames a file: DCP writes its metadata under another name first."""
        super().rename(path, new_path)
        self.entries[Path(new_path).name] = self.entries.pop(Path(path).name)

    def save(self, tree: dict[str, Any], path: Path) -> None:
        """Saves by torch.save, and syncs."""
        with self.create_stream(path, "wb") as file:
            torch.save(tree, file)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
