"""Images that are drawn by a formula, so that a vision model learns without a download.

Each image follows from its index alone: any rank, any attempt and any number of loader processes
get the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dtj_trainer.data.order import Indices

Image = np.ndarray[Any, np.dtype[np.float32]]
CLASSES = 10
# Rows of 5 pixels from top to bottom, a hexadecimal number of two digits each.
FONT = (
    "0e11131519110e", "040c040404040e", "0e11010204081f", "1f02040201110e", "02060a121f0202",
    "1f101e0101110e", "0608101e11110e", "1f010204080808", "0e11110e11110e", "0e11110f01020c",
)  # fmt: skip


class DrawnImages:
    """A data set of `length` images, from number `first` of an endless series on; its classes take turns."""

    def __init__(self, length: int, *, first: int = 0) -> None:
        self._length = length
        self._first = first

    def draw(self, label: int, random: np.random.Generator) -> Image:
        """Returns an image of a class, (channels, height, width), of values around 0."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = self.get_batch([index])
        return images[0], labels[0]

    def get_batch(self, indices: Sequence[int] | Indices) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns (images, labels): (n, channels, height, width) float32 and (n,) int64."""
        numbers = [self._first + int(i) for i in indices]
        images = [self.draw(n % CLASSES, np.random.Generator(np.random.Philox(key=n))) for n in numbers]
        return torch.from_numpy(np.stack(images)), torch.tensor([n % CLASSES for n in numbers])


class Gratings(DrawnImages):
    """Stripes in colour: the class is their direction; width, phase, colours and noise are random."""

    def __init__(self, length: int, *, first: int = 0, pixels: int = 32, noise: float = 0.3) -> None:
        super().__init__(length, first=first)
        self._noise = np.float32(noise)
        places = np.linspace(0, 1, pixels, dtype=np.float32)
        self._y, self._x = np.meshgrid(places, places, indexing="ij")

    def draw(self, label: int, random: np.random.Generator) -> Image:
        """Returns stripes at `label` times 18 degrees."""
        angle, stripes = np.pi * label / CLASSES, random.uniform(3, 6)
        along = self._x * np.float32(np.cos(angle)) + self._y * np.float32(np.sin(angle))
        wave = np.sin(np.float32(2 * np.pi * stripes) * along + np.float32(random.uniform(0, 2 * np.pi)))
        colours = random.uniform(0.3, 1.0, (3, 1, 1)).astype(np.float32)
        out: Image = colours * wave + self._noise * random.standard_normal((3, *wave.shape), dtype=np.float32)
        return out


class Glyphs(DrawnImages):
    """Digits of a font of 5x7 pixels, in grey, 28x28: size, place, brightness and noise are random."""

    PIXELS = 28

    def __init__(self, length: int, *, first: int = 0, noise: float = 0.2) -> None:
        super().__init__(length, first=first)
        self._noise = np.float32(noise)
        self._font = [
            np.array([[int(row, 16) >> bit & 1 for bit in range(4, -1, -1)] for row in _rows(glyph)], np.float32)
            for glyph in FONT
        ]

    def draw(self, label: int, random: np.random.Generator) -> Image:
        """Returns the digit `label`, two or three times as large as in the font."""
        glyph = np.kron(self._font[label], np.ones([random.integers(2, 4)] * 2, np.float32))
        middle = (np.array([self.PIXELS] * 2) - glyph.shape) // 2
        top, left = middle + random.integers(-2, 3, 2)
        out: Image = self._noise * random.standard_normal((1, self.PIXELS, self.PIXELS), dtype=np.float32)
        out[0, top : top + glyph.shape[0], left : left + glyph.shape[1]] += glyph * np.float32(random.uniform(0.6, 1.0))
        return out


def _rows(glyph: str) -> list[str]:
    return [glyph[at : at + 2] for at in range(0, len(glyph), 2)]
