"""The largest micro-batch that fits in memory, found by trying: out of memory is caught, not died of."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch

from dtj_trainer.errors import ConfigError

# The CPU's allocator has no error type of its own; a thread that can't have a stack says the second.
_CPU_SAYS = ("can't allocate memory", "Resource temporarily unavailable")
HEADROOM = 0.9  # of the largest that fitted: fragmentation and longer-lived tensors come later


def largest_that_fits(fits: Callable[[int], bool], limit: int) -> int:
    """The largest n up to `limit` for which `fits(n)` (doubling, then bisection).

    Raises ConfigError if not even one sample fits.
    """
    good, bad = 0, limit + 1
    n = 1
    while good + 1 < bad:
        if fits(n):
            good = n
            n = min(2 * n, limit) if bad > limit else (good + bad) // 2
        else:
            bad = n
            n = (good + bad) // 2
    if good == 0:
        raise ConfigError("not even micro_batch_size=1 fits in memory: use strategy fsdp, recompute: block, or a smaller model")
    return good


def fits(attempt: Callable[[int], None], n: int) -> bool:
    """Whether `attempt(n)` ends without running out of memory; any other error is raised."""
    try:
        attempt(n)
    except MemoryError:
        return False
    except RuntimeError as e:
        if not isinstance(e, torch.OutOfMemoryError) and not any(said in str(e) for said in _CPU_SAYS):
            raise
        return False
    finally:
        gc.collect()  # the failed attempt's tensors hang on its traceback
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return True


def with_headroom(largest: int, limit: int) -> int:
    """What to use: all of the share if that fits, else 0.9 of the largest."""
    return largest if largest == limit else max(1, int(largest * HEADROOM))
