"""The GPUs of a pod, as far as its device files show them."""

from __future__ import annotations

import os
import re
from typing import Sequence

# NVIDIA's nvidia0, nvidia1, ...; AMD's GPUs have a render node each.
_GPU = re.compile(r"nvidia[0-9]+")
_RENDER_NODE = re.compile(r"renderD[0-9]+")


def count_gpus(root: str = "/dev") -> int:
    """Returns the number of GPUs of NVIDIA, or else of render nodes; 0 if there is neither."""
    return _count(_GPU, root) or _count(_RENDER_NODE, os.path.join(root, "dri"))


def _count(pattern: "re.Pattern[str]", folder: str) -> int:
    try:
        found: Sequence[str] = os.listdir(folder)
    except OSError:
        return 0
    return sum(pattern.fullmatch(name) is not None for name in found)
