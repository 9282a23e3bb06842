"""Records that the scripts of a chaos group log, read as the files grow."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

Sample = tuple[float, tuple[int, ...]]
"""Loss and samples of one step."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A process has entered an attempt."""

    time: float
    attempt: int
    rank: int
    world: int
    step: int
    """The step from which it resumed."""


@dataclass(frozen=True, slots=True)
class Step:
    """A rank has done a step."""

    time: float
    attempt: int
    step: int
    rank: int
    world: int
    loss: float
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """A checkpoint was committed."""

    time: float
    attempt: int
    step: int


@dataclass(slots=True)
class Records:
    """All records of a group, in the order in which each process wrote them."""

    begins: list[Begin] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    newest: int = 0
    """The newest attempt in which any rank has begun."""
    last_step: float = 0.0
    """The time of the newest step that all ranks of its attempt have done."""
    group_steps: dict[int, int] = field(default_factory=dict)
    """How many steps all ranks of an attempt have done, by attempt."""
    first_steps: dict[int, float] = field(default_factory=dict)
    """When all ranks of an attempt had done its first step."""
    worlds: dict[int, int] = field(default_factory=dict)
    """The ranks of each attempt."""
    _done: dict[tuple[int, int], int] = field(default_factory=dict)
    _open: dict[str, Begin] = field(default_factory=dict)
    _offsets: dict[str, int] = field(default_factory=dict)

    def read(self, folder: Path) -> None:
        """Takes what has been written since the last call. A line that is being written is left for the next."""
        for path in folder.iterdir():
            offset = self._offsets.get(path.name, 0)
            if path.stat().st_size > offset:
                with path.open("rb") as file:
                    file.seek(offset)
                    data = file.read()
                whole = data[: data.rfind(b"\n") + 1]
                self._offsets[path.name] = offset + len(whole)
                self.take(path.name, whole.decode())

    def processes(self) -> dict[int, str]:
        """Returns the name of the log of each rank's process in the newest attempt."""
        return {begin.rank: process for process, begin in self._open.items() if begin.attempt == self.newest}

    def take(self, process: str, text: str) -> None:
        """Takes lines of one process."""
        for line in text.splitlines():
            match line.split():
                case ["begin", when, attempt, rank, world, step]:
                    begin = Begin(float(when), int(attempt), int(rank), int(world), int(step))
                    self._open[process] = begin
                    self.begins.append(begin)
                    self.newest = max(self.newest, begin.attempt)
                    self.worlds[begin.attempt] = begin.world
                case ["step", when, attempt, step, loss, ids]:
                    self._step(process, float(when), int(attempt), int(step), float.fromhex(loss), ids)
                case ["commit", when, attempt, step]:
                    self.commits.append(Commit(float(when), int(attempt), int(step)))
                case _:
                    self.stale.append(line)

    def _step(self, process: str, when: float, attempt: int, step: int, loss: float, ids: str) -> None:
        begin = self._open[process]
        samples = () if ids == "-" else tuple(map(int, ids.split(",")))
        self.steps.append(Step(when, attempt, step, begin.rank, begin.world, loss, samples))
        done = self._done[attempt, step] = self._done.get((attempt, step), 0) + 1
        if done == begin.world:
            self.last_step = max(self.last_step, when)
            self.first_steps.setdefault(attempt, when)
            self.group_steps[attempt] = self.group_steps.get(attempt, 0) + 1
