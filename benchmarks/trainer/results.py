"""The tables of README.md. Only `--render` writes figures into the README."""

from __future__ import annotations

from pathlib import Path

from benchmarks.report import Report, Table
from benchmarks.trainer import checkpoint, snapshots
from benchmarks.trainer.arms import BARE_DDP, BARE_FSDP, BARE_ZERO, MEMORY_ONLY, SMALL_BUCKETS, TUNED_DDP

_BESIDE = {"*": BARE_DDP, "Trainer, `fsdp`": BARE_FSDP, "Trainer, `fsdp_scratch`": BARE_FSDP, BARE_FSDP: BARE_FSDP}
_OFFLOADED = dict.fromkeys((name for name in MEMORY_ONLY if name != SMALL_BUCKETS), BARE_FSDP)
_FAIR = _BESIDE | {"Trainer, `ddp`": TUNED_DDP, "Trainer, `ddp_scratch`": TUNED_DDP}
"""The Trainer's targets compare it with a loop that is tuned like the Trainer, not with torch's defaults."""
_GLOO = (
    "On a CPU with gloo, `fully_shard` waits for each collective and `fsdp_scratch` does not. "
    "The gain of `fsdp_scratch` here is due to gloo: don't expect the same on a GPU with NCCL."
)
_THROUGHPUT = {
    "`State` in that loop": 0.99,
    "Trainer, `ddp`": 0.99,
    "Trainer, `ddp_scratch`": 0.95,
    "Trainer, `fsdp`": 0.99,
    "Trainer, `fsdp_scratch`": 0.9,
}
_COUNTED = "Exact; on a CPU the arms with offload have their tensors in the same memory."
_BYTES = {
    **_FAIR,
    **_OFFLOADED,
    **dict.fromkeys((BARE_ZERO, "Trainer, `zero1`", "Trainer, `zero2`", SMALL_BUCKETS), BARE_ZERO),
}
OURS = "ours, asynchronous"
TABLES = {
    "throughput-gpt": Table(
        title="A step of a GPT of 0.8 M parameters, global batch 8",
        unit="ms",
        ratio="throughput",
        beside=_FAIR,
        target=_THROUGHPUT,
        note=_GLOO,
    ),
    "throughput-mlp": Table(
        title="A step of an MLP of 12.6 M parameters: 50 MB of gradients to send",
        unit="ms",
        ratio="throughput",
        beside=_FAIR,
        target=_THROUGHPUT,
        note=_GLOO,
    ),
    "memory-peak": Table(
        title="Peak memory of a rank over a run of that MLP",
        unit="MB",
        ratio="cost",
        beside=_BESIDE | _OFFLOADED,
        note="Fresh processes. On a CPU the arms with offload have their tensors in the same memory.",
    ),
    "memory-state": Table(
        title="Weights and optimizer state of that peak, which stay between steps",
        unit="MB",
        ratio="cost",
        beside={"*": BARE_DDP},
    ),
    "bytes-parameters": Table(
        title="Tensors of a rank by kind, after the optimizer's step of that MLP: parameters",
        unit="MB",
        ratio="cost",
        beside=_BYTES,
        note=_COUNTED,
    ),
    "bytes-gradients": Table(
        title="Gradients, with the buffers that are kept for them",
        unit="MB",
        ratio="cost",
        beside=_BYTES,
        note="torch's DDP has buckets beside them in C++, which this count does not see, unless gradients are views.",
    ),
    "bytes-optimizer": Table(title="Optimizer state", unit="MB", ratio="cost", beside=_BYTES, note=_COUNTED),
    "bytes-sum": Table(title="The sum of these", unit="MB", ratio="cost", beside=_BYTES, note=_COUNTED),
    "snapshots-small": Table(
        title="A step of an MLP with 0.8 MB of state, with memory snapshots",
        unit="ms",
        ratio="cost",
        beside={"*": snapshots.NONE},
        target={snapshots.AUTO: 1.02},
        note="Each rank is a pod; under DDP partners get what is private.",
    ),
    "snapshots-ddp": Table(
        title="A step of an MLP with 50 MB of state, with memory snapshots",
        unit="ms",
        ratio="cost",
        beside={"*": snapshots.NONE},
        target={snapshots.AUTO: 1.02},
    ),
    "snapshots-fsdp": Table(
        title="The same under `fully_shard`: each partner gets a whole shard",
        unit="ms",
        ratio="cost",
        beside={"*": snapshots.NONE},
        target={snapshots.AUTO: 1.02},
    ),
    "snapshots-cost": Table(
        title="One snapshot on one rank: what the training thread waited, and the CPU time of the thread beside it",
        unit="ms",
        note="Median of the last five, once a trial; a snapshot after each step.",
    ),
    "stall": Table(
        title="Stall of the training thread for a checkpoint of 151 MB",
        unit="ms",
        ratio="cost",
        beside={"*": "dcp.save", OURS: checkpoint.BEST_DCP},
        target={OURS: 1.0},
        note="MLP with AdamW, local disk, fsync.",
    ),
    "beside-writing": Table(
        title="A step while a checkpoint is being written",
        unit="ms",
        ratio="cost",
        beside={"*": checkpoint.NOTHING},
        target={checkpoint.OURS: 1.05},
    ),
    "overhead": Table(
        title="Cost of reporting (meters, records, progress to an agent) in a step",
        unit="%",
        target={"CPU time": 1.0, "wall time": 1.0},
        note="In one training run, every second block of ten steps is reported; medians of both kinds are compared.",
    ),
}
REPORT = Report(Path(__file__).parent, TABLES)
