"""What NVIDIA's management library says of this rank's GPU; on a machine without one it says nothing, which is normal."""

from __future__ import annotations

from typing import Any

import torch

# Dense bf16 tensor-core FLOP/s from NVIDIA's data sheets (without sparsity), by a part of the device's name.
# The first part that is found counts.
PEAK_FLOPS = {
    "H200 NVL": 836e12, "H200": 989e12, "H100 NVL": 836e12, "H100 PCIe": 756e12, "H100": 989e12,
    "A100": 312e12, "L40S": 362e12, "A10G": 70e12,
}  # fmt: skip


def peak_flops(device: torch.device) -> float | None:
    """The device's best FLOP/s in bf16, if it is a GPU that we know."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((flops for part, flops in PEAK_FLOPS.items() if part in name), None)


class GpuMeter:
    """Utilisation by device; without the library, a driver or a GPU every answer is None."""

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
        """The part of the last sampling period (up to a second) in which a kernel ran, 0 to 1."""
        if self._handle is None:
            return None
        try:
            return float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 100
        except self._nvml.NVMLError:
            return None
