"""The largest micro-batch that fits in memory, found by trying: out of memory is caught, not died of."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch

from dtj_trainer.errors import ConfigError, OutOfMemory

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
        if not is_out_of_memory(e):
            raise
        return False
    finally:
        gc.collect()  # the failed attempt's tensors hang on its traceback
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return True


def is_out_of_memory(error: RuntimeError) -> bool:
    """Returns whether torch says by this error that memory is short, on a GPU or in the host."""
    return isinstance(error, torch.OutOfMemoryError) or any(said in str(error) for said in _CPU_SAYS)


FIRST_STEPS = 3  # of a run: what the optimizer and the allocator need for good is there after the first two
ADVICE = "write a smaller micro_batch_size (or auto), recompute: block, precision.dtype: bf16, or strategy fsdp"


def out_of_memory(said: str, *, step: int, fixed: bool) -> ConfigError | OutOfMemory:
    """Returns the error for a step that ran out of memory.

    A run that has none of its first steps behind it would run into the same at each attempt, unless the micro-batch is looked
    for anew: ConfigError, which asks for no restart. A later step may have met a fragmented memory or a neighbour's.
    """
    first = " ".join(said.split())[:300]
    if fixed and step < FIRST_STEPS:
        return ConfigError(f"step {step} runs out of memory: {ADVICE} ({first})")
    return OutOfMemory(f"step {step} ran out of memory, the steps before it did not: {ADVICE} ({first})")


def with_headroom(largest: int, limit: int) -> int:
    """What to use: all of the share if that fits, else 0.9 of the largest."""
    return largest if largest == limit else max(1, int(largest * HEADROOM))
