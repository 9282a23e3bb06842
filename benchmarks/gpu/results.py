"""The tables of README.md. Only `--render` writes figures into the README."""

from __future__ import annotations

from pathlib import Path

from benchmarks.gpu.measures import BARE, COMPILED, EDGE, FIRST, FLOOR, FOUND, OURS, SAVE, TF32
from benchmarks.report import Report, Table

TABLES = {
    "mfu": Table(
        title="MFU: the share of the device's peak in bf16 that the model's arithmetic uses",
        unit="%",
        more_is_better=True,
        target={OURS: 40.0, COMPILED: 40.0},
    ),
    "tokens": Table(title="Tokens per second", unit="tokens/s", more_is_better=True),
    "step": Table(
        title="A step in bf16",
        unit="ms",
        ratio="throughput",
        beside={OURS: BARE, COMPILED: OURS},
        target={OURS: 0.99, COMPILED: 1.16},
    ),
    "precision": Table(
        title="Mixed precision beside fp32 with TF32",
        unit="ms",
        ratio="throughput",
        beside={"*": TF32},
        target={OURS: 1.8},
    ),
    "recompute-memory": Table(
        title="Activation checkpointing: peak memory of a training run", unit="MB", ratio="cost", beside={"*": "none"}
    ),
    "recompute-time": Table(
        title="Activation checkpointing: a step", unit="ms", ratio="throughput", beside={"*": "none"}
    ),
    "edge": Table(
        title="The largest micro-batch",
        unit="sequences",
        ratio="share",
        more_is_better=True,
        beside={"*": EDGE},
        target={FOUND: 0.85},
        note="auto keeps a tenth in reserve, rounded down.",
    ),
    "stall": Table(
        title="Stall of the training for a checkpoint",
        unit="ms",
        ratio="cost",
        beside={"*": FLOOR},
        target={SAVE: 1.2},
        note=f"{FIRST[0].upper()}{FIRST[1:]} also allocates the pinned buffers.",
    ),
    "state": Table(title="Size of that checkpoint", unit="MB"),
}
REPORT = Report(Path(__file__).parent, TABLES)
