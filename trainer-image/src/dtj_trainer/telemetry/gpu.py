"""Reads this rank's GPU through NVIDIA's management library.

A machine without GPU or library has no values, which is normal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

# Dense bf16 tensor-core FLOP/s from NVIDIA's data sheets (without sparsity), by a substring of the
# device's name. The first substring that matches counts.
PEAK_FLOPS = {
    "H200 NVL": 836e12, "H200": 989e12, "H100 NVL": 836e12, "H100 PCIe": 756e12, "H100": 989e12,
    "A100": 312e12, "L40S": 362e12, "A10G": 70e12,
}  # fmt: skip


def peak_flops(device: torch.device) -> float | None:
    """Returns the device's peak FLOP/s in bf16; None for an unknown device."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((flops for known, flops in PEAK_FLOPS.items() if known in name), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuReading:
    """State of one device at one moment."""

    utilization: float
    """Share, 0 to 1, of the last sampling period (up to a second) with a kernel running."""
    memory: float
    """Bytes in use on the device, by all processes and the driver."""


def read_gpu(nvml: Any, handle: Any) -> GpuReading | None:
    """Returns the device's state by the calls of `nvml`; None if the driver rejects one of them."""
    try:
        return GpuReading(
            utilization=float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100,
            memory=float(nvml.nvmlDeviceGetMemoryInfo(handle).used),
        )
    except nvml.NVMLError:
        return None


class GpuMeter:
    """Reads the device of this rank; None without the library, a driver or a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._handle: Any = None
        if device.type != "cuda":
            return
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            uuid = str(torch.cuda.get_device_properties(device).uuid)
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except ImportError:
            return
        except pynvml.NVMLError:
            self._handle = None

    def read(self) -> GpuReading | None:
        """Returns the device's state now."""
        return None if self._handle is None else read_gpu(self._nvml, self._handle)
