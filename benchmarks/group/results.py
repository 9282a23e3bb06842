"""The table of README.md. Only `--render` writes figures into the README."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.ledger import Trial
from benchmarks.report import Page

KEY, TITLE = "group", "All members fail at once: the next attempt on all"
SECONDS = {"sockets 512": 2.0, "virtual 4096": 5.0}
"""Target of the worst trial."""
BYTES, BYTES_PER_MEMBER = 20e6, 10e3
NOTE = (
    "`sockets` have one real coordinator; `virtual` time has the real state machines."
    " Messages are those that members send and receive, without heartbeats."
    " Memory is the coordinator's resident memory at its highest; its growth is beside the smallest group."
)


def render(circumstances: str, trials: Sequence[Trial]) -> str:
    """Returns the table as Markdown: a row for each arm and size."""
    rows: dict[str, list[Trial]] = {}
    for trial in sorted(trials, key=lambda trial: (trial["kind"], trial["members"])):
        rows.setdefault(trial["arm"], []).append(trial)
    out = [f"**{TITLE}**", ""]
    out.append("| members | trials | median s | worst s | messages a member | memory | growth a member | target |")
    out.append("|---|---:|---:|---:|---:|---:|---:|---|")
    smallest: dict[str, tuple[int, float]] = {}
    for arm, found in rows.items():
        seconds, members = [trial["seconds"] for trial in found], found[0]["members"]
        messages = statistics.median(trial["messages"] for trial in found)
        cells = [arm, str(len(found)), f"{statistics.median(seconds):.2f}", f"{max(seconds):.2f}", f"{messages:.1f}"]
        memory = max((trial["bytes"] for trial in found if "bytes" in trial), default=0)
        base_members, base = smallest.setdefault(found[0]["kind"], (members, memory))
        cells.append(f"{memory / 1e6:.1f} MB" if memory else "")
        cells.append(f"{(memory - base) / (members - base_members) / 1e3:.1f} kB" if members > base_members else "")
        out.append("| " + " | ".join([*cells, _target(arm, max(seconds), memory, members)]) + " |")
    return "\n".join([*out, "", f"{NOTE} {circumstances}", ""])


def _target(arm: str, worst: float, memory: float, members: int) -> str:
    limits = []
    if arm in SECONDS:
        limits.append(f"≤ {SECONDS[arm]:g} s: {_met(worst <= SECONDS[arm])}")
    if memory:
        allowed = BYTES + members * BYTES_PER_MEMBER
        limits.append(f"≤ {allowed / 1e6:.1f} MB: {_met(memory <= allowed)}")
    return "; ".join(limits)


def _met(met: bool) -> str:
    return "met" if met else "missed"


class Report(Page):
    """README.md and results.json of this folder."""

    def rendered(self) -> str:
        """Returns the README with its table."""
        return self.filled({KEY: TITLE}, lambda key, found: render(found["circumstances"], found["trials"]))

    def update_readme(self) -> None:
        """Writes the table into the README."""
        self.readme.write_text(self.rendered())


REPORT = Report(Path(__file__).parent)
