"""The most memory that this process, or its GPU, has held since a moment; Linux."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_M_MMAP_THRESHOLD = -3  # mallopt(3)
_RESET_PEAK = "5"  # proc(5): the peak of the resident set becomes its present size


class Peak:
    """Bytes beyond what was there when it was made."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        gc.collect()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
            self._before = torch.cuda.memory_allocated(device)
        else:
            libc = ctypes.CDLL(None)
            libc.mallopt(_M_MMAP_THRESHOLD, 1 << 16)  # from now on what is freed goes back at once: the peak is of what is in use
            libc.malloc_trim(0)  # and what was freed before goes back too
            _CLEAR.write_text(_RESET_PEAK)
            self._before = _resident("VmRSS")

    def bytes(self) -> int:
        """So far."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device) - self._before
        return _resident("VmHWM") - self._before


def _resident(field: str) -> int:
    lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return int(lines[field].split()[0]) * 1024
