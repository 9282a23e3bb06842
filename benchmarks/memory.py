"""The peak memory of this process or its GPU since a given moment, on Linux."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_M_MMAP_THRESHOLD = -3  # mallopt(3)
_RESET_PEAK = "5"  # proc(5): the peak becomes the present size


class Peak:
    """Peak memory in bytes, beyond the memory in use when the object was created."""

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
            # Freed memory must return to the kernel at once, so that the peak counts only memory in use.
            libc.mallopt(_M_MMAP_THRESHOLD, 1 << 16)
            libc.malloc_trim(0)
            _CLEAR.write_text(_RESET_PEAK)
            self._before = _resident("VmRSS")

    def bytes(self) -> int:
        """Returns the peak so far."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device) - self._before
        return _resident("VmHWM") - self._before


def _resident(field: str) -> int:
    lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return int(lines[field].split()[0]) * 1024
