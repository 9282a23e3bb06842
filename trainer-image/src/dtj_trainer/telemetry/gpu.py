"""Reads this rank's GPU through NVIDIA's management library.

A machine without GPU or library has no values, which is normal.
"""

from __future__ import annotations

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


class GpuMeter:
    """Reads a device's utilization; None without the library, a driver or a GPU."""

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

    def utilization(self) -> float | None:
        """Returns the share, 0 to 1, of the last sampling period (up to a second) with a kernel running."""
        if self._handle is None:
            return None
        try:
            return float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 100
        except self._nvml.NVMLError:
            return None
