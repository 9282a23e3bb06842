"""The order of samples, as one endless stream that all ranks agree on (pure).

Sample number p of the stream is number `p % length` of the permutation of epoch `p // length`. A
step takes the next samples, as many as `StepSize` has, and ranks split them. Therefore the data position
of a run is one number, p: there is no sampler state, and a world of another size continues at p
without repeating or losing a sample.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dtj_trainer.data.step_size import StepSize
from dtj_trainer.errors import ConfigError

Indices = npt.NDArray[np.int64]


@dataclass(kw_only=True, slots=True)
class DataOrder(StepSize):
    """Gives each step its samples, for all ranks.

    `state_dict` puts the position into a checkpoint.
    """

    length: int
    """Samples in the data set."""
    seed: int = 0
    shuffle: bool = True
    _epoch: int = field(default=-1, init=False, repr=False)
    _permutation: Indices = field(default_factory=lambda: np.empty(0, np.int64), init=False, repr=False)

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ConfigError("the data set is empty: check the path that it is read from")
        if self.global_batch_size < 1:
            raise ConfigError(
                f"global_batch_size={self.global_batch_size}: write samples per step over all ranks, 1 or more"
            )

    def steps_for(self, epochs: float) -> int:
        """Returns the full steps from the position to the end of `epochs`.

        Less than one batch is left out, once per run and not once per epoch.
        """
        return max(0, int(epochs * self.length) - self.position) // self.size

    @property
    def epoch(self) -> int:
        """The epoch of the next sample, from 0."""
        return self.position // self.length

    def batch(self, position: int | None = None) -> Indices:
        """Returns all ranks' sample indices of the step that begins at `position` (default: the next)."""
        start = self.position if position is None else position
        pieces, left = [], self.size
        while left:
            epoch, offset = divmod(start, self.length)
            piece = self._epoch_order(epoch)[offset : offset + left]
            pieces.append(piece)
            start, left = start + len(piece), left - len(piece)
        return np.concatenate(pieces)

    def state_dict(self) -> dict[str, int]:
        """Returns the position and what the order depends on."""
        return StepSize.state_dict(self) | {
            "seed": self.seed,
            "length": self.length,
            "shuffle": int(self.shuffle),
            "global_batch_size": self.global_batch_size,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continues at the position of `state`.

        Raises ConfigError if `state` is of another order of samples.
        """
        own = self.state_dict()
        options = {key: key for key in own if key not in ("position", "first_world_size")}
        options["length"] = "the data set"
        # Steps are counted in batches: with another batch size they would end in another epoch.
        for key, option in options.items():
            if state.get(key, own[key]) != own[key]:
                raise ConfigError(
                    f"the checkpoint was made with {key}={state[key]}, this run has {key}={own[key]}: samples would be "
                    f"repeated or lost; set {option} back, or start in a new checkpoint folder"
                )
        StepSize.load_state_dict(self, state)

    def _epoch_order(self, epoch: int) -> Indices:
        if not self.shuffle:
            epoch = 0
        if epoch != self._epoch:
            everything = np.arange(self.length, dtype=np.int64)
            # Philox by (seed, epoch) is the same on every platform and for every world size, and
            # needs no earlier epoch.
            generator = np.random.Generator(np.random.Philox(key=(self.seed << 32) + epoch))
            self._permutation = generator.permutation(everything) if self.shuffle else everything
            self._epoch = epoch
        return self._permutation


def rank_bounds(size: int, rank: int, world_size: int) -> tuple[int, int]:
    """Returns (begin, end) of a rank's contiguous share of `size` samples.

    Raises ConfigError if a rank would have none.
    """
    if size < world_size:
        raise ConfigError(f"global_batch_size={size} is less than the {world_size} ranks: write at least {world_size}")
    return size * rank // world_size, size * (rank + 1) // world_size
