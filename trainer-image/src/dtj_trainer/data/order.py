"""The order of samples, as one endless stream that all ranks agree on (pure).

Sample number p of the stream is number `p % length` of epoch `p // length`'s permutation. A step takes the next
`global_batch_size` of them, and ranks split it. So the data position of a run is one number, p: no sampler state, and
a world of another size goes on at p without repeating or losing a sample.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dtj_trainer.errors import ConfigError

Indices = npt.NDArray[np.int64]


@dataclass(kw_only=True, slots=True)
class DataOrder:
    """Which samples step by step, for all ranks. `state_dict` makes it part of a checkpoint."""

    length: int
    """Samples in the data set."""
    global_batch_size: int
    """Samples of one optimizer step over all ranks, so the number of steps does not depend on the world."""
    seed: int = 0
    shuffle: bool = True
    position: int = 0
    """Samples taken so far, since the beginning of the run."""
    _epoch: int = field(default=-1, init=False, repr=False)
    _permutation: Indices = field(default_factory=lambda: np.empty(0, np.int64), init=False, repr=False)

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ConfigError("the data set is empty: look at the path it is read from")
        if self.global_batch_size < 1:
            raise ConfigError(f"global_batch_size={self.global_batch_size}: write samples per step over all ranks, 1 or more")

    def steps_for(self, epochs: float) -> int:
        """Full steps in so many epochs; what is left over is less than one batch, once a run and not once an epoch."""
        return int(epochs * self.length) // self.global_batch_size

    @property
    def epoch(self) -> int:
        """The epoch of the next sample, from 0."""
        return self.position // self.length

    def batch(self, position: int | None = None) -> Indices:
        """Sample indices of the step that begins at `position` (default: the next), all ranks together."""
        start = self.position if position is None else position
        parts, left = [], self.global_batch_size
        while left:
            epoch, offset = divmod(start, self.length)
            part = self._of_epoch(epoch)[offset : offset + left]
            parts.append(part)
            start, left = start + len(part), left - len(part)
        return np.concatenate(parts)

    def advance(self) -> None:
        """The step is done: its samples are never given again."""
        self.position += self.global_batch_size

    def state_dict(self) -> dict[str, int]:
        """Position and what the order depends on."""
        return {
            "position": self.position,
            "seed": self.seed,
            "length": self.length,
            "shuffle": int(self.shuffle),
            "global_batch_size": self.global_batch_size,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Goes on where `state` stood. Raises ConfigError if that was another order of samples."""
        own = self.state_dict()
        options = {key: key for key in own if key != "position"} | {"length": "the data set"}
        for key, option in options.items():  # steps are counted in batches: of another size they would end in another epoch
            if state.get(key, own[key]) != own[key]:
                raise ConfigError(
                    f"the checkpoint was made with {key}={state[key]}, this run has {key}={own[key]}: samples would be repeated "
                    f"or lost; set {option} back, or start in a new checkpoint folder"
                )
        self.position = state["position"]

    def _of_epoch(self, epoch: int) -> Indices:
        if not self.shuffle:
            epoch = 0
        if epoch != self._epoch:
            everything = np.arange(self.length, dtype=np.int64)
            # Philox by (seed, epoch): the same on every platform and for every world, and any epoch without the ones before.
            generator = np.random.Generator(np.random.Philox(key=(self.seed << 32) + epoch))
            self._permutation = generator.permutation(everything) if self.shuffle else everything
            self._epoch = epoch
        return self._permutation


def rank_bounds(size: int, rank: int, world_size: int) -> tuple[int, int]:
    """[begin, end) of a rank's contiguous part of `size` samples. Raises ConfigError if there are fewer than ranks."""
    if size < world_size:
        raise ConfigError(f"global_batch_size={size} is less than the {world_size} ranks: write at least {world_size}")
    return size * rank // world_size, size * (rank + 1) // world_size
