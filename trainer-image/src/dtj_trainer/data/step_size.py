"""The number of samples of a step, which stays the same for the group or for a rank (pure).

All that is remembered of earlier worlds is the first one's size. A checkpoint has it beside the
position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BatchRule = Literal["Global", "PerRank"]


@dataclass(kw_only=True, slots=True)
class StepSize:
    """The samples of one optimizer step at this world size, and the position in the stream of samples."""

    global_batch_size: int
    """Samples of one optimizer step over all ranks of the first world."""
    world_size: int = 1
    batch_rule: BatchRule = "Global"
    """The batch that stays the same when the world size changes: that of all ranks, or that of each."""
    first_world_size: int = 0
    """Ranks of the run's first attempt; 0: those of this one."""
    position: int = 0
    """Samples taken so far by all ranks together."""

    @property
    def size(self) -> int:
        """The samples of one optimizer step over all ranks."""
        if self.batch_rule == "Global":
            return self.global_batch_size
        return self.global_batch_size * self.world_size // self._first

    @property
    def growth(self) -> float:
        """The batch of a step, relative to that of the first world."""
        return 1.0 if self.batch_rule == "Global" else self.world_size / self._first

    @property
    def first_share(self) -> int:
        """The most samples that a rank of the first world had in a step: its memory held as many."""
        return -(-self.global_batch_size // self._first)

    @property
    def _first(self) -> int:
        return self.first_world_size or self.world_size

    def advance(self) -> None:
        """Moves past the samples of a step that is done."""
        self.position += self.size

    def state_dict(self) -> dict[str, int]:
        """Returns the position, and the first world."""
        return {"position": self.position, "first_world_size": self._first}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continues at the position of `state`; one of an earlier version has no first world."""
        self.position = state["position"]
        self.first_world_size = state.get("first_world_size", self.world_size)
