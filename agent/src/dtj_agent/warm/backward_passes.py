"""Counts the backward passes of a script that has created no torch optimizer.

torch has no global hook for a backward pass. `Tensor.backward` and `torch.autograd.backward` both look
up `_engine_run_backward` by its name in the module, so a wrapper can stand there; all public functions
remain torch's own. The wrapper is taken away at the first pass of a script that has an optimizer, and
that pass is not counted. The first three passes count only once there is a fourth: a script may warm up
before it creates its optimizer, and a step ends the recovery.
"""

from __future__ import annotations

import functools
import sys
from threading import get_ident
from typing import Any, Callable

NAME = "_engine_run_backward"
# Looking for optimizers takes 7 µs and more, so later passes look only now and then. The first step of
# an optimizer ends the count anyway.
ALWAYS_LOOKS, LOOKS_EVERY = 64, 64
WARM_UP = 3
"""Passes that may be a warm-up. DDP's buckets settle in two."""


class BackwardPasses:
    """Calls `on_pass(count)` after each outermost backward pass of this thread, until the script has an optimizer."""

    def __init__(self, on_pass: Callable[[int], None]) -> None:
        self._on_pass = on_pass
        self._is_counting = False
        self._original: Any = None
        self._wrapper: Any = None

    def start(self) -> None:
        """Begins to count. Raises AttributeError if this version of torch can't be counted."""
        modules = sys.modules
        optimizer = modules["torch.optim.optimizer"].Optimizer
        optimizer.profile_hook_step  # noqa: B018  # without it, has_optimizer would find none
        self._original = modules["torch.autograd.graph"]._engine_run_backward
        self._wrapper = self._wrapped(optimizer)
        _skip_in_compiler(self._wrapper)
        self._is_counting = True
        self._replace(self._original, self._wrapper)

    def stop(self) -> None:
        """Takes the wrapper away. Whoever has a reference to it calls torch's function through it."""
        if self._is_counting:
            self._is_counting = False
            self._replace(self._wrapper, self._original)

    def _replace(self, old: Any, new: Any) -> None:
        for module in (sys.modules["torch.autograd"], sys.modules["torch.autograd.graph"]):
            if getattr(module, NAME, None) is old:
                setattr(module, NAME, new)

    def _wrapped(self, optimizer: Any) -> Any:
        original, on_pass, this_thread = self._original, self._on_pass, get_ident()
        is_inside, passes = False, 0

        @functools.wraps(original)
        def run_backward(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_inside, passes
            # Reentrant checkpointing runs a pass within a pass, on a GPU in a thread of autograd.
            if is_inside or not self._is_counting or get_ident() != this_thread:
                return original(*args, **kwargs)
            is_pass = kwargs.get("accumulate_grad")  # unlike torch.autograd.grad
            if is_pass and (passes < ALWAYS_LOOKS or not passes % LOOKS_EVERY) and has_optimizer(optimizer):
                self.stop()
                return original(*args, **kwargs)
            is_inside = True
            try:
                result = original(*args, **kwargs)
            finally:
                is_inside = False
            if is_pass and self._is_counting:
                passes += 1
                if passes > WARM_UP:
                    on_pass(passes)
            return result

        return run_backward


def has_optimizer(kind: Any) -> bool:
    """Returns whether an optimizer of this class or one below it was ever created.

    torch marks the `step` of a class when its first optimizer is created.
    """
    return hasattr(kind.step, "hooked") or any(map(has_optimizer, kind.__subclasses__()))


def _skip_in_compiler(wrapper: Any) -> None:
    """Keeps torch.compile from compiling the wrapper, but not from compiling what the pass itself calls."""
    compiler = sys.modules["torch"]._C._dynamo.eval_frame
    action = compiler._FrameAction
    strategy = compiler._FrameExecStrategy(action.SKIP, action.DEFAULT)
    compiler.set_code_exec_strategy(wrapper.__code__, strategy)
