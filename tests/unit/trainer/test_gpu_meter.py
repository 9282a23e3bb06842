"""The GPUs of all ranks in the metrics, without a GPU: what follows from the readings of NVML."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch

from dtj_trainer.telemetry.gpu import GpuReading, read_gpu
from dtj_trainer.telemetry.meter import Rates, summary

#        loss step data compute checkpoint communication exposed evaluation memory memory_share
TIMES = [1.0, 2.0, 0.1, 1.0, 0.1, 1.0, 0.5, 0.0, 100.0, 0.1]


def test_gpus_are_shown_by_rank_once_every_rank_has_read_its_own() -> None:
    rows = torch.tensor([[*TIMES, 0.25, 7e9], [*TIMES, 0.75, 9e9]], dtype=torch.float64)
    window = summary(rows, 16, Rates())
    assert (window.metrics["gpu_utilization"], window.metrics["gpu_memory_bytes"]) == (0.5, 9e9)
    assert window.per_rank["gpu_utilization"] == [0.25, 0.75]
    assert window.per_rank["gpu_memory_bytes"] == [7e9, 9e9]
    rows[1, -2:] = math.nan
    blind = summary(rows, 16, Rates())
    assert not any("gpu" in name for name in (*blind.metrics, *blind.per_rank))


class FakeNvml:
    """The calls of pynvml that are used; `fails` as a driver that does not know one of them."""

    class NVMLError(Exception):
        pass

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:
        assert handle == "device"
        return SimpleNamespace(gpu=40, memory=12)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        if self.fails:
            raise self.NVMLError
        return SimpleNamespace(total=80_000, free=20_000, used=60_000)


def test_gpu_reading_has_shares_and_bytes_or_nothing() -> None:
    assert read_gpu(FakeNvml(), "device") == GpuReading(utilization=0.4, memory=60_000.0)
    assert read_gpu(FakeNvml(fails=True), "device") is None
