"""Text of variable length with masked characters, padded to the longest sample of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from dtj_trainer.data.order import Indices
from dtj_trainer.data.text import VOCABULARY
from dtj_trainer.errors import ConfigError

PAD, MASK = VOCABULARY, VOCABULARY + 1
MASKED_VOCABULARY = VOCABULARY + 2
IGNORED = -100
"""Target where nothing is to be guessed; torch's cross entropy ignores it."""
MASKED_SHARE = 0.15


class MaskedTextData:
    """A token file cut into blocks, of each of which a sample has the first quarter at least.

    Of a sample, 15 % of the characters are to be guessed, at least one. As in BERT (Devlin et al.
    2018), 80 % of these are replaced by MASK, 10 % by a random character, and 10 % stay. Length and
    masks follow from the sample's number, so that each epoch and each attempt has the same.
    """

    def __init__(self, path: Path, block: int, start: float = 0.0, stop: float = 1.0) -> None:
        """Maps the file from the fraction `start` of its length to `stop`."""
        tokens = np.memmap(path, np.uint8, "r")
        self._tokens = tokens[int(len(tokens) * start) : int(len(tokens) * stop)]
        self._first = int(len(tokens) * start)
        self._block = block
        if block < 4 or len(self) < 1:
            raise ConfigError(f"block={block}: write 4 or more, and at most the {len(self._tokens)} tokens of {path}")

    @property
    def lengths(self) -> range:
        """The lengths that samples have, each as often as any other."""
        return range(self._block // 4, self._block + 1)

    def __len__(self) -> int:
        return len(self._tokens) // self._block

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {name: values[0] for name, values in self.get_batch([index]).items()}

    def get_batch(self, indices: Sequence[int] | Indices) -> dict[str, torch.Tensor]:
        """Returns `tokens`, `attended` and `targets`, (n, longest): int64, bool, int64.

        `attended` is False where a sample is padded, and `targets` is IGNORED where nothing is to
        be guessed.
        """
        samples = [self._sample(int(i)) for i in indices]
        longest = max(len(tokens) for tokens, _ in samples)
        tokens = np.full((len(samples), longest), PAD, np.int64)
        targets = np.full((len(samples), longest), IGNORED, np.int64)
        for row, (own_tokens, own_targets) in enumerate(samples):
            tokens[row, : len(own_tokens)] = own_tokens
            targets[row, : len(own_targets)] = own_targets
        attended = tokens != PAD
        return {
            "tokens": torch.from_numpy(tokens),
            "attended": torch.from_numpy(attended),
            "targets": torch.from_numpy(targets),
        }

    def _sample(self, index: int) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], ...]:
        random = np.random.Generator(np.random.Philox(key=self._first + index * self._block))
        length = int(random.integers(self.lengths.start, self.lengths.stop))
        whole = self._tokens[index * self._block :][:length].astype(np.int64)
        guessed = random.permutation(length)[: max(1, round(length * MASKED_SHARE))]
        targets = np.full(length, IGNORED, np.int64)
        targets[guessed] = whole[guessed]
        kind = random.random(len(guessed))
        replaced = np.where(kind < 0.8, MASK, random.integers(0, VOCABULARY, len(guessed)))
        tokens = whole.copy()
        tokens[guessed] = np.where(kind < 0.9, replaced, whole[guessed])
        return tokens, targets
