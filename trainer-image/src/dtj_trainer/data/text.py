"""Characters as tokens, in a file of bytes that every rank maps into memory."""

from __future__ import annotations

import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from dtj_trainer.data.order import Indices
from dtj_trainer.errors import ConfigError

ALPHABET = "\n\t" + "".join(chr(c) for c in range(32, 127))  # other characters become "?"
VOCABULARY = len(ALPHABET)


def encode(text: str) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Returns the tokens of a text, one byte per character."""
    table = np.full(128, ALPHABET.index("?"), np.uint8)
    for number, character in enumerate(ALPHABET):
        table[ord(character)] = number
    codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8)
    return table[codes]


def decode(tokens: Sequence[int]) -> str:
    """Returns the text of tokens, for a person to read."""
    return "".join(ALPHABET[t] for t in tokens)


def standard_library(limit: int) -> str:
    """Returns the first `limit` characters of the standard library's sources, ordered by name."""
    folder = Path(sysconfig.get_path("stdlib"))
    sources: list[str] = []
    size = 0
    for path in sorted(folder.rglob("*.py")):
        if {"test", "tests", "idlelib", "lib2to3", "site-packages"} & set(path.parts):
            continue
        sources.append(path.read_text(encoding="utf-8", errors="replace"))
        size += len(sources[-1])
        if size >= limit:
            break
    return "".join(sources)[:limit]


def token_file(path: Path, limit: int) -> Path:
    """Creates the token file if it is missing, by writing a temporary file and renaming it.

    Processes that find it missing at the same time each write the same bytes. None waits for a
    lock, which on a network volume may be held by a node that is gone.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as aside:
            aside.write(encode(standard_library(limit)).tobytes())
        Path(aside.name).chmod(0o644)
        Path(aside.name).rename(path)
    return path


class TokenData:
    """A token file cut into blocks: sample i is (tokens from i·block on, the same shifted by one)."""

    def __init__(self, path: Path, block: int, start: float = 0.0, stop: float = 1.0) -> None:
        """Maps the file from the fraction `start` of its length to `stop`."""
        tokens = np.memmap(path, np.uint8, "r")
        self._tokens = tokens[int(len(tokens) * start) : int(len(tokens) * stop)]
        self._block = block
        if len(self) < 1:
            raise ConfigError(
                f"{path} has {len(self._tokens)} tokens here, less than one block: write block below {block}"
            )

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // self._block

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        batch = self.get_batch([index])
        return batch[0][0], batch[1][0]

    def get_batch(self, indices: Sequence[int] | Indices) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns (inputs, targets), each (n, block) int64."""
        at = np.asarray(indices)[:, None] * self._block + np.arange(self._block + 1)[None, :]
        tokens = torch.from_numpy(self._tokens[at].astype(np.int64))
        return tokens[:, :-1], tokens[:, 1:]
