"""The tables and the plot of README.md. Only `--render` writes figures into the README."""

from __future__ import annotations

from pathlib import Path

from benchmarks.communication import buckets, choice, plot, tuning
from benchmarks.communication.loss import DEFAULT, PLAIN
from benchmarks.communication.speed import CEILING, DDP
from benchmarks.report import Report, Table

LINKS = {
    200: {"powersgd, rank 12": 18, "topk, 1 %": 14, "bf16": 1.9},
    1000: {"powersgd, rank 12": 5, "topk, 1 %": 4.5, "bf16": 1.7},
}
"""The targets by the rate of the link in Mbit/s."""
INTERLEAVED = "torch DDP, ranks alternate between the nodes"
AGAIN = "hierarchical, beside alternating ranks"
LEVELS = {
    200: {"hierarchical": 1.4, "hierarchical, bf16 between the nodes": 2.5, AGAIN: 2.6},
    1000: {"hierarchical": 1.1},
}
"""The targets of four ranks on two nodes, by the rate of the link in Mbit/s."""
TABLES = (
    {
        f"speed-{mbit}": Table(
            title=f"A step of an MLP of 12.6 M parameters on two nodes, {mbit} Mbit/s",
            unit="ms",
            ratio="throughput",
            beside={"*": DDP},
            target=targets,
        )
        for mbit, targets in LINKS.items()
    }
    | {
        f"share-{mbit}": Table(
            title=f"The same as a share of the step without communication, {mbit} Mbit/s",
            unit="ms",
            ratio="throughput",
            beside={"*": CEILING},
            target={"powersgd, rank 12": 0.4, "topk, 1 %": 0.32},
        )
        for mbit in LINKS
    }
    | {
        f"levels-{mbit}": Table(
            title=f"That step on two nodes of two ranks, {mbit} Mbit/s",
            unit="ms",
            ratio="throughput",
            beside={AGAIN: INTERLEAVED, "*": DDP},
            target=targets,
        )
        for mbit, targets in LEVELS.items()
    }
    | {
        "buckets-200": Table(
            title="A model of 200 matrices of 16 KB, four ranks on two nodes, 200 Mbit/s",
            unit="ms",
            ratio="throughput",
            beside={"*": buckets.AFTER},
            target={buckets.SMALL: 3.0},
        )
    }
    | {
        "tune-200": Table(
            title="Two runs as they are configured, and with what `tune: true` has found, 200 Mbit/s",
            unit="ms",
            ratio="throughput",
            beside={f"{name}, {tuning.TUNED}": f"{name}, {tuning.AS_CONFIGURED}" for name in tuning.WORKLOADS},
        )
    }
    | {
        f"auto-{mbit}": Table(
            title=f"Three models with each method, and with the one that auto has chosen, {mbit} Mbit/s",
            unit="ms",
            ratio="throughput",
            beside={f"{model}, {choice.AUTO}": f"{model}, {choice.BEST}" for model in choice.MODELS},
            target={f"{model}, {choice.AUTO}": 0.95 for model in choice.MODELS},
        )
        for mbit in choice.LINKS
    }
    | {
        "bytes": Table(title="Bytes that a node sends in that step, headers included", unit="MB"),
    }
    | {
        f"loss-{steps}": Table(
            title=f"Validation loss of the character GPT after {steps} steps",
            unit="nats",
            ratio="cost",
            beside={"*": PLAIN},
            target={DEFAULT: 1.01} if steps == 300 else {},
        )
        for steps in (300, 900)
    }
)


class PlottedReport(Report):
    """README.md and results.json of this folder, and the curve of loss against bytes."""

    def update_readme(self) -> None:
        """Writes the tables into the README, and the plot into docs/figures."""
        Report.update_readme(self)
        plot.draw(self.load())


REPORT = PlottedReport(Path(__file__).parent, TABLES)
