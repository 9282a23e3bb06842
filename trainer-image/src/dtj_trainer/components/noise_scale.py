"""The gradient noise scale: the batch size up to which more samples in a step save about as many steps.

McCandlish, Kaplan, Amodei 2018, "An Empirical Model of Large-Batch Training", section 2.2 and appendix A.1: a rank's
own gradient is that of a small batch, the mean over the ranks that of a large one, and their lengths differ by the
noise.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from dtj_trainer.distributed.process_group import Group

DECAY = 0.9
"""The weight of what was known before a new estimate. Both estimates are noisy, and their quotient is biased."""


class NoiseScale:
    """Estimates the scale from logged steps."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._square = 0.0
        self._variance = 0.0

    def update(self, own_square: torch.Tensor, mean_norm: torch.Tensor, samples: int) -> float | None:
        """Adds a step, and returns the scale in samples; None if it is not known yet. A collective.

        Args:
            own_square: The squared length of this rank's gradient.
            mean_norm: The length of the mean gradient.
            samples: The samples of the step over all ranks.
        """
        small = own_square.detach().to(torch.float64).reshape(1)
        dist.all_reduce(small)
        square, variance = estimate(
            float(small) / self._group.world_size, float(mean_norm) ** 2, samples / self._group.world_size, samples
        )
        self._square += (1 - DECAY) * (square - self._square)
        self._variance += (1 - DECAY) * (variance - self._variance)
        return self._variance / self._square if self._square > 0 and self._variance > 0 else None


def estimate(small: float, large: float, few: float, many: float) -> tuple[float, float]:
    """Returns the squared length of the true gradient, and the sum of a sample's variances (pure).

    Args:
        small: The squared length of the gradient of `few` samples; its mean over several such batches.
        large: The same of `many` samples.
        few: The smaller number of samples.
        many: The larger one.
    """
    return (many * large - few * small) / (many - few), (small - large) / (1 / few - 1 / many)
