"""The random number generators of one rank: Python, NumPy, torch, CUDA.

Restored, the next draw is the same.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def capture() -> dict[str, Any]:
    """Returns the state as plain numbers and tensors, so that torch.load(weights_only=True) reads it."""
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (
            str(kind),
            torch.from_numpy(np.asarray(keys).astype(np.int64)),
            int(position),
            int(has_gauss),
            float(gauss),
        ),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def restore(state: dict[str, Any]) -> None:
    """Restores what `capture` returned.

    A state captured without CUDA leaves the CUDA generator as it is.
    """
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def seed_resized(step: int, rank: int) -> None:
    """Seeds a rank's generators after a change of the world size, by step and rank."""
    seed_all(step * 1_000_003 + rank)


def seed_all(seed: int) -> None:
    """Seeds all generators."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
