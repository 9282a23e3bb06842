"""Weak scaling of engines under `dtj run`: measured with 1, 2 and 4 ranks, modelled with more. Needs root."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.engines import arms
from benchmarks.ledger import Ledger, Trial
from benchmarks.recovery.arms import Ours
from benchmarks.recovery.trials import NeverStartedError, wait
from benchmarks.report import loads, markdown
from benchmarks.simulation.sizes import BACKWARD, BUCKET_MB, LAYERS, WIDTH
from dtj.simulate.collectives import all_reduce
from dtj.simulate.network import Link, Network
from dtj.simulate.overlap import data_parallel
from dtj.simulate.profile import even

KEY, TITLE = "scaling", "Speed of N ranks, in ranks that are alone"
ENGINES = ("horovod", "ray", "tensorflow")
MEASURED = (1, 2, 4)
RANKS = (2, 4, 8, 16, 32)
CLAIMED = {
    ("horovod", 8): 7.8, ("horovod", 16): 13.8, ("horovod", 32): 26.5, ("ray", 8): 7.2, ("tensorflow", 8): 7.3,
}  # fmt: skip
"""Speed-ups that other frameworks state."""
GRADIENT_BYTES = 4 * LAYERS * WIDTH * (WIDTH + 1)
LITTLE, MUCH = "4", "2097152"
"""Bytes of the all-reduces that scripts/scaling_steps.py times."""
RUN_SECONDS = 600.0
NOTE = (
    "Medians of all trials, and half of the trials lie in the range. Measured: two nodes with a core each, which "
    "two ranks share where there are four. Modelled: from the step of one rank and the all-reduces below, with "
    "what the step of two ranks takes beyond the model, in proportion to the bytes that a rank sends."
)


class Scaled(arms.OurEngine):
    """`dtj run` of an engine's script that times its steps, on a loopback of its own."""

    SPEC: ClassVar[dict[str, Any]]

    def __init__(self, ranks: int, compression: str) -> None:
        super().__init__()
        self.SCRIPT = arms.HERE / f"scripts/scaling_{self.ENGINE}.py"
        root = str(arms.HERE.parents[1])
        self.environment |= {
            "PYTHONPATH": f"{root}:{self.environment['PYTHONPATH']}", "TF_CPP_MIN_LOG_LEVEL": "1",
            "SCALING_RANKS": str(ranks), "SCALING_COMPRESSION": compression,
        }  # fmt: skip

    def execute(self, name: str, command: list[str], **environment: str) -> subprocess.Popen[bytes]:
        """Starts a process of the trial where no other traffic of this machine is counted."""
        inside = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
        return super().execute(name, [*inside, *command], **environment)

    def logs(self) -> str:
        """Returns the ends of the logs of `dtj run` and its pods."""
        return self.output() + "".join(path.read_text()[-2000:] for path in self.folder.glob("run/*.log"))


def run(engine: str, ranks: int, compression: str = "none") -> Trial:
    """Returns what rank 0 has timed. Raises NeverStartedError with the logs if it times nothing."""
    spec = {**Ours.SPEC, "engine": engine, "replicas": min(2, ranks), "processesPerPod": max(1, ranks // 2)}
    group = type("Engine", (Scaled,), {"ENGINE": engine, "SPEC": spec})(ranks, compression)
    result = group.folder / "result.json"
    try:
        group.start()
        if not wait(lambda: result.exists() or group.has_ended(), RUN_SECONDS) or not result.exists():
            raise NeverStartedError(f"{engine}, {ranks} ranks: no result\n{group.logs()}")
        found: Trial = json.loads(result.read_text())
        return found
    finally:
        group.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class Speedup:
    """The speed of so many ranks, in ranks that are alone."""

    ranks: int
    measured: float | None
    """None: so many ranks were not started."""
    quartiles: tuple[float, float] | None
    modelled: float


def modelled(trial: Trial, ranks: int) -> float:
    """Returns the modelled seconds of a step, from the step of one rank, that of two, and all-reduces.

    The model has no time of the sender's processor: what two ranks take beyond the model is added, in proportion
    to the bytes that a rank sends in a ring, which are 2(n-1)/n of its gradients.
    """
    beyond = max(0.0, trial["seconds"]["2"] - _model(trial, 2))
    return _model(trial, ranks) + beyond * 2 * (ranks - 1) / ranks


def _model(trial: Trial, ranks: int) -> float:
    """Returns the seconds of a step whose all-reduces hide behind the backward pass where they can.

    A ring of n ranks sends 2(n-1) times, and each time an n-th of the bytes. Four ranks take longer than two to
    reduce nearly no bytes: by the latency of four messages. The rest of that time is spent once, as Horovod's
    negotiation is.
    """
    two, four = trial["reduce"]["2"], trial["reduce"]["4"]
    latency = min(max(0.0, four[LITTLE] - two[LITTLE]) / 4, two[LITTLE] / 2)
    once = two[LITTLE] - 2 * latency
    link = Link(latency, int(MUCH) / (two[MUCH] - two[LITTLE]))
    network = Network(node=link, local=link, rack=link)
    backward = LAYERS * BACKWARD
    buckets = even(GRADIENT_BYTES, BUCKET_MB * 1024 * 1024, backward)
    passes = data_parallel(buckets, backward, lambda size: once + all_reduce(size, ranks, network))
    seconds: float = trial["seconds"]["1"] + passes.exposed
    return seconds


def speedups(trials: Sequence[Trial], engine: str) -> Iterator[Speedup]:
    """Yields the speed-ups of an engine by number of ranks: medians of those of each trial."""
    found = [trial for trial in trials if trial["arm"] == engine]
    for ranks in RANKS if found else ():
        model = statistics.median(ranks * trial["seconds"]["1"] / modelled(trial, ranks) for trial in found)
        real, quartiles = None, None
        if ranks in MEASURED:
            each = [ranks * trial["seconds"]["1"] / trial["seconds"][str(ranks)] for trial in found]
            real = statistics.median(each)
            if len(each) > 1:
                low, _, high = statistics.quantiles(each, n=4)
                quartiles = low, high
        yield Speedup(ranks=ranks, measured=real, quartiles=quartiles, modelled=model)


def saved(trials: Sequence[Trial]) -> float:
    """Returns the bytes of a step without compression over those with it."""
    return statistics.median(trial["sent"]["none"] / trial["sent"]["fp16"] for trial in trials)


def render(circumstances: str, trials: Sequence[Trial]) -> str:
    """Returns the table of speed-ups as Markdown, and what the model is given below."""
    rows, notes = [], []
    for engine in ENGINES:
        found = [trial for trial in trials if trial["arm"] == engine]
        for row in speedups(trials, engine):
            real = "" if row.measured is None else f"{row.measured:.2f}x"
            spread = "" if row.quartiles is None else f"{row.quartiles[0]:.2f} to {row.quartiles[1]:.2f}"
            claimed = f"{CLAIMED[engine, row.ranks]:g}x" if (engine, row.ranks) in CLAIMED else ""
            rows.append([f"`{engine}`", str(row.ranks), real, spread, f"{row.modelled:.2f}x", claimed])
        if found:
            one = 1000 * statistics.median(trial["seconds"]["1"] for trial in found)
            took = (("2", LITTLE), ("2", MUCH), ("4", LITTLE))
            two, much, four = (
                1000 * statistics.median(trial["reduce"][ranks][size] for trial in found) for ranks, size in took
            )
            notes.append(
                f"`{engine}`, {len(found)} trials: a step of one rank takes {one:.1f} ms, an all-reduce of two ranks "
                f"{two:.2f} ms with 4 bytes and {much:.2f} ms with 2 MiB, one of four ranks {four:.2f} ms with 4 bytes."
            )
    if compressed := [trial for trial in trials if "fp16" in trial["sent"]]:
        plain, half = (statistics.median(trial["sent"][key] for trial in compressed) for key in ("none", "fp16"))
        notes.append(
            f"Horovod's two ranks send {plain / 1e6:.2f} MB in a step, and {half / 1e6:.2f} MB with `Compression.fp16`:"
            f" {saved(compressed):.2f}x fewer bytes, headers included."
        )
    heads = ("ranks", "measured", "half of the trials", "modelled", "others state")
    columns = {"engine": "left", **dict.fromkeys(heads, "right")}
    return markdown(TITLE, columns, rows, *notes, f"{NOTE} {loads(trials)} {circumstances}")  # type: ignore[arg-type]


def measure(engine: str) -> Trial:
    """Measures one trial of an engine: groups of 1, 2 and 4 ranks, one after the other."""
    found = {ranks: run(engine, ranks) for ranks in MEASURED}
    sent = {"none": found[2]["sent"]}
    if engine == "horovod":
        sent["fp16"] = run(engine, 2, "fp16")["sent"]
    seconds = {str(ranks): round(statistics.median(each["step"]), 6) for ranks, each in found.items()}
    reduce = {str(ranks): each["reduce"] for ranks, each in found.items() if ranks > 1}
    return {"seconds": seconds, "reduce": reduce, "sent": sent}


def main() -> int:
    """Measures the engines that are installed and prints the table."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.engines.scaling", description=__doc__)
    p.add_argument("--engine", action="append", choices=ENGINES, help="default: all that are installed; repeatable")
    p.add_argument("--trials", type=int, default=10)
    p.add_argument("--seed", type=int, default=1, help="of the order of the engines")
    p.add_argument("--out", type=Path, help="keep the trials in this JSON file, and continue from it")
    p.add_argument("--again", action="store_true", help="drop the trials that the file has of these engines")
    args = p.parse_args()
    # A trial that SIGTERM interrupts leaves no process and no result.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    engines = [one for one in ENGINES if one in arms.installed() and one in (args.engine or ENGINES)]
    ledger = Ledger(args.out)
    if args.again:
        ledger.forget(KEY, engines)
    for number in range(args.trials):
        # A disturbance that lasts longer than a trial meets all engines.
        for engine in random.Random(f"{args.seed}/{number}").sample(engines, len(engines)):
            if ledger.has(KEY, engine, number):
                continue
            ledger.begin(KEY, args.trials, "gloo or gRPC on loopback, two nodes with a core each")
            load = round(os.getloadavg()[0], 2)
            try:
                measured = measure(engine)
            except NeverStartedError as error:
                print(f"{number} {error}\nThis trial measures nothing; repeat the command.", file=sys.stderr)
                continue
            ledger.add(KEY, {"arm": engine, "trial": number, "load": load, **measured})
            print(f"{number} {engine}: {measured['seconds']} s", file=sys.stderr, flush=True)
    if found := ledger.trials(KEY):
        print(render(ledger.circumstances(KEY), found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
