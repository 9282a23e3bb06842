"""Finds the largest micro-batch that fits in memory by trying sizes and catching the errors."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch

from dtj_trainer.errors import ConfigError, OutOfMemory

# The CPU's allocator has no error type of its own. The second text is of a thread that gets no
# stack.
_CPU_OUT_OF_MEMORY = ("can't allocate memory", "Resource temporarily unavailable")
HEADROOM = 0.9
"""The fraction of the largest size that fits which is used: fragmentation and longer-lived tensors come later."""


def largest_that_fits(fits: Callable[[int], bool], limit: int) -> int:
    """Returns the largest n up to `limit` for which `fits(n)` holds (doubling, then bisection).

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
        raise ConfigError(
            "not even micro_batch_size=1 fits in memory: use strategy fsdp, recompute: block, or a smaller model"
        )
    return good


def fits(attempt: Callable[[int], None], n: int) -> bool:
    """Returns whether `attempt(n)` ends without running out of memory.

    Any other error is raised.
    """
    try:
        attempt(n)
    except MemoryError:
        return False
    except RuntimeError as e:
        if not is_out_of_memory(e):
            raise
        return False
    finally:
        gc.collect()  # the traceback holds the failed attempt's tensors
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return True


def is_out_of_memory(error: RuntimeError) -> bool:
    """Returns whether an error of torch means that memory is short, on a GPU or on the host."""
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in _CPU_OUT_OF_MEMORY)


FIRST_STEPS = 3
"""Steps at the start of a run in which memory use still grows.

All that the optimizer and the allocator need for good is there after two of them.
"""
ADVICE = "write a smaller micro_batch_size (or auto), recompute: block, precision.dtype: bf16, or strategy fsdp"


def out_of_memory(message: str, *, step: int, fixed: bool) -> ConfigError | OutOfMemory:
    """Returns the error for a step that ran out of memory.

    The first steps of a run would fail again in each attempt, unless the micro-batch is searched
    for again: ConfigError, which asks for no restart. A later step may have met fragmented memory,
    or memory that a neighbour uses.
    """
    first = " ".join(message.split())[:300]
    if fixed and step < FIRST_STEPS:
        return ConfigError(f"step {step} runs out of memory: {ADVICE} ({first})")
    return OutOfMemory(f"step {step} ran out of memory, the steps before it did not: {ADVICE} ({first})")


def with_headroom(largest: int, limit: int) -> int:
    """Returns the size to use: the whole share if that fits, else 0.9 of the largest."""
    return largest if largest == limit else max(1, int(largest * HEADROOM))
