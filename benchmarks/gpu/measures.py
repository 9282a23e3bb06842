"""The measurements: each function takes a GpuBench and returns tables' rows. At toy size they run on a CPU too."""

from __future__ import annotations

import shutil
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import torch

from benchmarks.gpu.bench import GpuBench, Turn
from benchmarks.memory import Peak
from benchmarks.report import Rows
from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.checkpoint.contents import CheckpointState, leaves
from dtj_trainer.checkpoint.retention import RetentionConfig
from dtj_trainer.checkpoint.store import CheckpointStore
from dtj_trainer.components.activation_checkpoint import Recompute
from dtj_trainer.components.batch_size import fits
from dtj_trainer.examples import gpt

Tables = dict[str, Rows]
BARE, OURS, COMPILED, TF32 = (
    "bare loop, bf16",
    "Trainer, bf16",
    "Trainer, bf16, torch.compile",
    "Trainer, fp32 with TF32",
)
FOUND, EDGE = "`micro_batch_size: auto`", "the most that trains"
FLOOR, SAVE, FIRST = "copy into pinned buffers that are there", "ours, asynchronous", "ours, the first one of a run"


def steps(bench: GpuBench, trials: int, peak_flops: float) -> Tables:
    """Measures the time of a step by precision and compilation, and derives MFU and tokens per second."""
    model, compiled = bench.model(), bench.model()
    compiled.compile(backend=bench.size.compiler)

    def tf32() -> Turn:
        torch.set_float32_matmul_precision("high")
        try:
            return bench.train(model, "fp32")
        finally:
            torch.set_float32_matmul_precision("highest")

    arms: dict[str, Callable[[], Turn]] = {
        BARE: lambda: bench.bare(model),
        OURS: lambda: bench.train(model),
        COMPILED: lambda: bench.train(compiled),
        TF32: tf32,
    }
    taken: Rows = {name: [] for name in arms}
    for trial in range(trials + 1):
        for name, arm in arms.items():
            turn = arm()
            if trial:  # the first trial compiles and fills caches
                taken[name].append(turn.milliseconds)
    tokens = bench.size.micro_batch * bench.size.gpt.block
    flops = model.flops_per_token() * tokens
    return {
        "step": {name: taken[name] for name in (BARE, OURS, COMPILED)},
        "precision": {name: taken[name] for name in (TF32, OURS)},
        "mfu": {name: [flops / (ms / 1e3) / peak_flops * 100 for ms in taken[name]] for name in (BARE, OURS, COMPILED)},
        "tokens": {name: [tokens / (ms / 1e3) for ms in row] for name, row in taken.items()},
    }


def recompute(bench: GpuBench, trials: int) -> Tables:
    """Measures peak memory and time of a step for each mode of activation checkpointing."""
    peaks: Rows = {mode: [] for mode in get_args(Recompute)}
    taken: Rows = {mode: [] for mode in peaks}
    for trial in range(trials + 1):
        for mode in get_args(Recompute):
            peak = Peak(bench.device)
            turn = bench.train(bench.model(), recompute=mode)
            if trial:
                peaks[mode].append(peak.bytes() / 1e6)
                taken[mode].append(turn.milliseconds)
    return {"recompute-memory": peaks, "recompute-time": taken}


def edge(bench: GpuBench, trials: int) -> Tables:
    """Measures the micro-batch that `auto` chooses, and the largest one that trains two whole steps."""
    rows: Rows = {FOUND: [], EDGE: []}
    largest = bench.size.largest

    def two_steps(n: int) -> None:
        bench.train(bench.model(), batch=n, micro=n, steps=2)

    def too_many(n: int) -> bool:
        return not fits(two_steps, n)

    for _ in range(trials):
        # The chosen size must train: running out of memory stops the benchmark, as it would fail a job.
        rows[FOUND].append(float(max(bench.train(bench.model(), batch=largest, micro="auto", steps=2).batches)))
        rows[EDGE].append(float(bisect_left(range(1, largest + 1), True, key=too_many)))
    return {"edge": rows}


def stall(bench: GpuBench, trials: int, volume: str | None) -> Tables:
    """Measures how long a checkpoint stalls the training, and the copy from the device that every save needs."""
    model = bench.model()
    optimizer = bench.optimizer(model)
    batch = bench.data(1).get_batch(range(1))
    gpt.loss(model, tuple(t.to(bench.device) for t in batch)).backward()  # type: ignore[no-untyped-call, arg-type]
    optimizer.step()
    optimizer.zero_grad()
    contents = CheckpointState({"model": model, "optimizer": optimizer})
    state = [leaf for _, leaf in leaves(contents.sharded()) if isinstance(leaf, torch.Tensor)]
    pinned = bench.device.type == "cuda"
    buffers = [torch.empty_like(t, device="cpu", pin_memory=pinned and t.is_cuda) for t in state]
    folder = Path(tempfile.mkdtemp(prefix="dtj-benchmark-", dir=volume))
    config = CheckpointConfig(retention=RetentionConfig(keep_last=1))
    store = CheckpointStore(folder, bench.trainer.group, config, attempt=None, notify=lambda *_: None)

    def copy() -> float:
        bench.synchronize()
        started = time.perf_counter()
        for buffer, tensor in zip(buffers, state, strict=True):
            buffer.copy_(tensor, non_blocking=True)
        bench.synchronize()
        return (time.perf_counter() - started) * 1000

    def save(number: int) -> float:
        bench.synchronize()
        started = time.perf_counter()
        store.save(number, contents, {})
        took = (time.perf_counter() - started) * 1000
        result = store.drain()
        if result is None or result.outcome != "committed":
            raise RuntimeError(f"checkpoint {number} was not written: {result}")
        return took

    try:
        copy()
        rows: Rows = {FLOOR: [], SAVE: [], FIRST: [save(1)]}
        for trial in range(trials):
            rows[FLOOR].append(copy())
            rows[SAVE].append(save(trial + 2))
    finally:
        store.close()
        shutil.rmtree(folder)
    return {"stall": rows, "state": {"weights and AdamW": [sum(t.numel() * t.element_size() for t in state) / 1e6]}}
