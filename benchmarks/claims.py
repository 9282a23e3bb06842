"""The claims of the field beside our own measurements: writes docs/claims.md. `python -m benchmarks.claims`."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engines import scaling
from benchmarks.ledger import Ledger, Trial
from benchmarks.report import Ratio, ratios
from benchmarks.simulation.efficiency import KEY as EFFICIENCY
from benchmarks.simulation.efficiency import Efficiency, efficiencies

PAGE = Path(__file__).parents[1] / "docs" / "claims.md"
BEATEN, REACHED = 1.05, 0.95
"""The measured ratio as a share of the claimed one, from which on a claim is beaten or reached."""
SAME_LOSS = 0.99
"""Stands for REACHED where the claim is about a loss: other batches change it by as much."""
NAMES = {page: f"../benchmarks/{page}/README.md" for page in ("communication", "engines", "trainer", "simulation")}
HEAD = """\
# Claims about distributed training, measured

Frameworks and papers state what their methods gain.
Each row repeats one such figure with our own code, on the hardware that the linked table names.
`python -m benchmarks.claims` writes this page from what the benchmarks measured: no figure is typed by hand.
A factor above the claimed one is better; a claim counts as reached within 5 %, one about a loss within 1 %.

| claim | claimed | measured | verdict |
|---|---:|---:|---|
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """One figure of the field, and the rows that measure it."""

    text: str
    claimed: float
    """A factor; larger is better."""
    page: str
    table: str
    arm: str
    reference: str
    kind: Ratio = "throughput"
    reached: float = REACHED
    """The share of the claimed factor that suffices."""
    because: str
    """The condition under which it holds, or the reason why it does not."""

    def measured(self) -> float | None:
        """Returns the median factor over the trials; None if it was not measured."""
        found = json.loads((Path(__file__).parent / self.page / "results.json").read_text())
        rows = found.get(self.table, {}).get("rows", {})
        if self.arm not in rows or self.reference not in rows:
            return None
        return statistics.median(ratios(rows, self.arm, self.reference, self.kind))

    def condition(self) -> str:
        """Returns the text behind the verdict."""
        return self.because


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaling(Claim):
    """The share of its speed that a rank keeps in a group, from the table of the simulation."""

    ranks: int
    page: str = "simulation"
    table: str = EFFICIENCY
    arm: str = ""
    reference: str = "1 rank"

    def measured(self) -> float | None:
        """Returns the measured efficiency, or the modelled one where so many ranks were not started."""
        row = self._row()
        return None if row is None else max(row.modelled, row.levels) if row.measured is None else row.measured

    def _row(self) -> Efficiency | None:
        found = json.loads((Path(__file__).parent / self.page / "results.json").read_text()).get(self.table, {})
        return next((row for row in efficiencies(found.get("trials", [])) if row.ranks == self.ranks), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineScaling(Claim):
    """The speed of many ranks of an engine, which is the arm: modelled, beside what fewer ranks have measured."""

    ranks: int
    page: str = "engines"
    table: str = scaling.KEY
    reference: str = "1 rank"
    because: str = "modelled from the step of one rank, that of two, and all-reduces"

    def measured(self) -> float | None:
        """Returns the modelled speed-up: so many ranks were not started."""
        return next((row.modelled for row in self._rows() if row.ranks == self.ranks), None)

    def condition(self) -> str:
        """Returns the text behind the verdict, with the measured speed-ups."""
        real = []
        for row in self._rows():
            if row.measured is not None:
                # That of two ranks is exact by construction.
                model = f" (modelled {row.modelled:.2f}x)" if row.ranks > 2 else ""
                real.append(f"{row.measured:.2f}x with {row.ranks} ranks{model}")
        return f"{self.because}; measured on two nodes of a core: {', '.join(real)}"

    def _rows(self) -> list[scaling.Speedup]:
        return list(scaling.speedups(engine_trials(), self.arm))


@dataclass(frozen=True, kw_only=True, slots=True)
class HorovodBytes(Claim):
    """The bytes that Horovod sends in a step, over those with its fp16 compression."""

    page: str = "engines"
    table: str = scaling.KEY
    arm: str = "horovod"
    reference: str = "Compression.none"

    def measured(self) -> float | None:
        """Returns the factor between two ranks."""
        found = [trial for trial in engine_trials() if trial["arm"] == self.arm]
        return scaling.saved(found) if found else None


def engine_trials() -> list[Trial]:
    """Returns the trials of the engines' scaling."""
    return Ledger(Path(__file__).parent / "engines" / "results.json").trials(scaling.KEY)


def _no_loss(text: str, table: str, arm: str, because: str) -> Claim:
    """Returns the claim that an arm ends at the loss of the run without compression."""
    return Claim(
        text=text,
        claimed=1.0,
        page="communication",
        table=table,
        arm="none",
        reference=arm,
        kind="cost",
        reached=SAME_LOSS,
        because=because,
    )


NAMED = {"horovod": "Horovod", "ray": "Ray Train", "tensorflow": "TensorFlow"}
DDP, EACH, ALONE = "torch DDP", "one all-reduce per tensor, after backward", "no communication"
CLAIMS = (
    Claim(
        text="16-bit gradients halve what is sent",
        claimed=2.0,
        page="communication",
        table="bytes",
        arm="bf16",
        reference=DDP,
        because="headers included",
    ),
    Claim(
        text="16-bit gradients make a step on a slow link twice as fast",
        claimed=2.0,
        page="communication",
        table="speed-200",
        arm="bf16",
        reference=DDP,
        because="at 200 Mbit/s the link is all of the step",
    ),
    Claim(
        text="16-bit gradients make a step twice as fast at 1 Gbit/s",
        claimed=2.0,
        page="communication",
        table="speed-1000",
        arm="bf16",
        reference=DDP,
        because="the casts and the model's own work stay",
    ),
    Claim(
        text="Top-K at 1 % sends 100 times less",
        claimed=100.0,
        page="communication",
        table="bytes",
        arm="topk, 1 %",
        reference=DDP,
        because="each value needs its place: 4 bytes for both is the least that we found",
    ),
    Claim(
        text="Top-K at 1 % makes a step 9.6 times as fast",
        claimed=9.6,
        page="communication",
        table="speed-200",
        arm="topk, 1 %",
        reference=DDP,
        because="at 200 Mbit/s, with error feedback",
    ),
    Claim(
        text="Top-K at 1 % makes a step 9.6 times as fast at 1 Gbit/s",
        claimed=9.6,
        page="communication",
        table="speed-1000",
        arm="topk, 1 %",
        reference=DDP,
        because="a step without any communication is 7.8 times as fast",
    ),
    _no_loss(
        "Top-K at 1 % costs no accuracy",
        "loss-300",
        "topk, 1 %",
        "the loss of the GPT after 300 steps of AdamW: 99 % of each gradient arrives late",
    ),
    _no_loss(
        "PowerSGD costs no accuracy",
        "loss-300",
        "powersgd, rank 12",
        "after 300 steps, with the defaults: rank 12, 100 plain steps, embeddings sent whole",
    ),
    Claim(
        text="PowerSGD makes a step 15.9 times as fast, as torch's does with one bucket",
        claimed=15.9,
        page="communication",
        table="speed-200",
        arm="powersgd, rank 12",
        reference=DDP,
        because="at 200 Mbit/s with many buckets, where torch's ends on gloo",
    ),
    _no_loss(
        "PowerSGD costs no accuracy in a longer run",
        "loss-900",
        "powersgd, rank 16",
        "after 900 steps, with rank 16: the gap grows with the length of the run, and falls with the rank",
    ),
    _no_loss(
        "Top-K at 10 % costs no accuracy once its ratio is annealed",
        "loss-300",
        "topk, 10 %, annealed",
        "after 300 steps of AdamW, annealed over 120 of them",
    ),
    _no_loss("8-bit gradients cost no accuracy", "loss-300", "int8", "after 300 steps"),
    _no_loss(
        "1-bit gradients cost no accuracy",
        "loss-300",
        "onebit",
        "after 300 steps, with error feedback and 100 plain steps",
    ),
    _no_loss(
        "local SGD with an exchange every 8 steps costs no accuracy",
        "loss-300",
        "local_sgd, every 8",
        "after 300 steps the ranks' weights have drifted apart",
    ),
    _no_loss(
        "DiLoCo with an exchange every 32 steps costs no accuracy",
        "loss-300",
        "local_sgd, every 32, DiLoCo",
        "after 300 steps: closer than local SGD without the outer step",
    ),
    Claim(
        text="hierarchical all-reduce makes a step 3.7 times as fast",
        claimed=3.7,
        page="communication",
        table="levels-200",
        arm="hierarchical",
        reference=DDP,
        because="2 nodes of 2 ranks, contiguous: a ring sends 1.5 times as much over a link, which is the limit",
    ),
    Claim(
        text="hierarchical all-reduce with 16 bits between the nodes is 3.7 times as fast",
        claimed=3.7,
        page="communication",
        table="levels-200",
        arm="hierarchical, bf16 between the nodes",
        reference=DDP,
        because="3 is the limit by bytes",
    ),
    Claim(
        text="bucketing makes a step 1.9 times as fast",
        claimed=1.9,
        page="communication",
        table="buckets-200",
        arm="ddp_scratch",
        reference=EACH,
        because="200 small matrices, overlap included, beside one all-reduce each",
    ),
    Claim(
        text="sharding halves weights, gradients and optimizer state on 2 ranks",
        claimed=2.0,
        page="trainer",
        table="memory-state",
        arm="Trainer, `fsdp`",
        reference="bare DDP loop",
        because="between two steps",
    ),
    Claim(
        text="sharding halves the peak of a step on 2 ranks",
        claimed=2.0,
        page="trainer",
        table="memory-peak",
        arm="Trainer, `fsdp`",
        reference="bare DDP loop",
        because="activations and the block that computes stay",
    ),
    Claim(
        text="an asynchronous checkpoint stalls training 6 times shorter than a plain one",
        claimed=6.0,
        page="trainer",
        table="stall",
        arm="ours, asynchronous",
        reference="torch.save on rank 0, fsync, barrier",
        because="151 MB of state; dcp.async_save with its defaults gains little on a CPU",
    ),
    Scaling(
        text="2 ranks keep 90 % of their speed",
        claimed=0.9,
        ranks=2,
        because="measured on two nodes of a core, 8.4 MB of gradients beside 60 ms of computation",
    ),
    Scaling(
        text="4 ranks keep 90 % of their speed",
        claimed=0.9,
        ranks=4,
        because="measured on two nodes of a core, 8.4 MB of gradients beside 60 ms of computation",
    ),
    Scaling(
        text="8 ranks keep 93 % of their speed",
        claimed=0.93,
        ranks=8,
        because="modelled on two nodes, from the profile of one rank and the link",
    ),
    Scaling(
        text="256 ranks keep 63 % of their speed",
        claimed=0.63,
        ranks=256,
        because="modelled on nodes of 8 ranks, with `communication.hierarchical`",
    ),
    *(
        EngineScaling(
            text=f"{ranks} ranks of {NAMED[engine]} are {claimed:g} times as fast as one",
            claimed=claimed,
            arm=engine,
            ranks=ranks,
        )
        for (engine, ranks), claimed in scaling.CLAIMED.items()
    ),
    HorovodBytes(
        text="Horovod's fp16 compression halves what is sent",
        claimed=2.0,
        because="between two ranks, headers included",
    ),
)


def verdict(claim: Claim, measured: float) -> str:
    """Returns whether the claim holds here."""
    share = measured / claim.claimed
    return "beaten" if share >= BEATEN else "reached" if share >= claim.reached else "not reached"


def row(claim: Claim) -> str:
    """Returns the table's row of a claim."""
    measured = claim.measured()
    where = f"[{claim.table}]({NAMES[claim.page]})"
    if measured is None:
        return f"| {claim.text} | {claim.claimed:g}x | not measured yet | {where} |"
    found = f"{measured:.2f}x" if measured < 10 else f"{measured:.1f}x"
    judged = f"**{verdict(claim, measured)}** ({where}): {claim.condition()}"
    return f"| {claim.text} | {claim.claimed:g}x | {found} | {judged} |"


def rendered() -> str:
    """Returns the page."""
    return HEAD + "\n".join(map(row, CLAIMS)) + "\n"


if __name__ == "__main__":
    PAGE.write_text(rendered())
