"""Fully sharded data parallelism from torch.distributed primitives, written to be read.

Its results equal fully_shard's. Each rank owns 1/world of every parameter, of its gradient and of
the optimizer's state. A block of the model has whole weights only while it computes:

    forward of block i:   all-gather its weights (i+1's are already on the way), compute, free them
    backward of block i:  all-gather again (i-1's are already on the way), compute its gradients,
                          reduce-scatter them to their owners, free both
    optimizer:            steps on the shards; no rank ever holds more than its own

A stage is what a block gathers: one FlatParamGroup for each dtype (flat_params.py). This file
decides when each of them is gathered, freed and scattered, by hooks on modules and gradients. The
root stage has what is in no block: it stays whole from forward to backward's end. Parameters that
are not trained have no gradient and no optimizer state, the bulk of what sharding saves: they stay
whole on each rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from dtj_trainer.distributed.process_group import Group
from dtj_trainer.strategies.cpu_offload import Offload, wait_for_host
from dtj_trainer.strategies.initial_weights import new_world_group
from dtj_trainer.strategies.scratch.call_order import CallOrder
from dtj_trainer.strategies.scratch.flat_params import FlatParamGroup, parameters_by_module
from dtj_trainer.strategies.scratch.hooks import on_gradient, on_output_gradient
from dtj_trainer.strategies.scratch.reduce_queue import ReduceQueue
from dtj_trainer.strategies.scratch.sharded_model import ShardedModel
from dtj_trainer.torch_private import in_backward


class ScratchFsdpModel(ShardedModel):
    """A sharded module. Its `parameters()` are the shards: an optimizer gets those."""

    def __init__(
        self,
        module: nn.Module,
        group: Group,
        blocks: Sequence[nn.Module],
        *,
        offload: Offload,
        sent_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(module, group)
        flat_groups: list[FlatParamGroup] = []
        names, self._offload = self.names, offload
        self._stages: list[list[FlatParamGroup]] = []
        reduce_group = new_world_group()
        for place, own in parameters_by_module(module, blocks):
            stage = []
            for dtype in dict.fromkeys(p.dtype for p in own):
                parameters = [p for p in own if p.dtype == dtype]
                own_names = [names[id(p)] for p in parameters]
                flat_group = FlatParamGroup(
                    own_names,
                    parameters,
                    group,
                    self.comm_timer,
                    reduce_group=reduce_group,
                    offload=offload,
                    sent_dtype=sent_dtype,
                )
                stage.append(flat_group)
            if stage and place is module:
                self._install_root(module, stage)
            elif stage:
                self._stages.append(stage)
                self._install(place, len(self._stages) - 1)
            flat_groups += stage
        self.set_groups(flat_groups)
        wait_for_host(group.device, offload=offload)
        self._calls = CallOrder(len(self._stages))
        self._reduce_queue = ReduceQueue(gives_up=True)
        self._uneven = set[int]()
        """Stages that some ranks have called in this step and others have not."""

    def _install(self, block: nn.Module, number: int) -> None:
        stage = self._stages[number]

        def before_forward(*_: Any) -> None:
            if not in_backward():
                for skipped in self._calls.reach(number):
                    self._gather_skipped(skipped)
            for flat_group in stage:
                flat_group.wait()
            if not in_backward():
                self._prefetch(self._calls.after(number))

        def after_forward(_: nn.Module, __: Any, output: Any) -> None:
            on_output_gradient(output, before_backward)
            if not in_backward():
                self._free(number)

        def before_backward(_: torch.Tensor) -> None:
            for flat_group in stage:
                flat_group.wait()
                flat_group.begin_backward()
            self._prefetch(self._calls.before(number))

        block.register_forward_pre_hook(before_forward)
        block.register_forward_hook(after_forward)
        self._on_gradients(stage, then=lambda flat_group: self._free(number, flat_group))

    def _install_root(self, module: nn.Module, stage: list[FlatParamGroup]) -> None:
        def before_forward(*_: Any) -> None:
            for flat_group in stage:
                flat_group.wait()

        def after_forward(_: nn.Module, __: Any, output: Any) -> None:
            on_output_gradient(output, before_backward)

        def before_backward(_: torch.Tensor) -> None:
            for flat_group in stage:
                flat_group.wait()
                flat_group.begin_backward()
            self._prefetch(self._calls.even[-1] if self._calls.even else None)

        module.register_forward_pre_hook(before_forward)
        module.register_forward_hook(after_forward)
        self._on_gradients(stage, then=lambda _: None)

    def _on_gradients(self, stage: list[FlatParamGroup], then: Callable[[FlatParamGroup], None]) -> None:
        def arrived(flat_group: FlatParamGroup, index: int, _: torch.Tensor) -> None:
            flat_group.used.add(index)
            flat_group.waiting -= 1
            if flat_group.waiting == 0:
                if self.synchronize:
                    self._reduce_queue.add(flat_group)
                then(flat_group)

        for flat_group in stage:
            for index, parameter in enumerate(flat_group.parameters):
                on_gradient(parameter, partial(arrived, flat_group, index))

    def _prefetch(self, number: int | None) -> None:
        for flat_group in self._stages[number] if number is not None else []:
            flat_group.gather()

    def _free(self, number: int, *flat_groups: FlatParamGroup) -> None:
        """Frees a stage, or some groups of it."""
        for flat_group in (flat_groups or self._stages[number]) if number not in self._uneven else ():
            flat_group.free()

    def _gather_skipped(self, number: int) -> None:
        """Takes part in the gathering of a block that this rank does not call."""
        for flat_group in self._stages[number]:
            flat_group.gather()
        self._free(number)

    def _agree_on_calls(self) -> None:
        """Finds, after a forward, the blocks that will have a backward on all ranks, and those that will on some."""
        for skipped in self._calls.rest():
            self._gather_skipped(skipped)
        if not torch.is_grad_enabled() or not self._stages:
            return
        rows = self._group.gather(torch.tensor(self._calls.row())).tolist()
        everywhere, somewhere = self._calls.agree(rows)
        # Ranks that skipped a block take no part in gathering it in backward, so all ranks gather
        # it now. Its gradients leave when all others have left.
        for number in (n for n in self._calls.order if n in somewhere - self._uneven):
            self._prefetch(number)
        self._uneven |= somewhere
        self._calls.even = [n for n in self._calls.order if n in everywhere - self._uneven]
        staged = {flat_group for stage in self._stages for flat_group in stage}
        root = [flat_group for flat_group in self.flat_groups if flat_group not in staged]
        self._reduce_queue.begin_backward([g for n in reversed(self._calls.even) for g in self._stages[n]] + root)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module."""
        self._calls.begin()
        out = self.inner[0](*args, **kwargs)
        self._agree_on_calls()
        return out

    def end_micro_batch(self) -> None:
        """Leaves all ranks with the same groups after a backward, whichever parameters of them each has used."""
        if self.synchronize:
            self.send_rest()
        for number in range(len(self._stages)):
            self._free(number)

    def send_rest(self) -> None:
        """Sends the gradients that lack a part: other ranks have it, and wait for this one."""
        while self._reduce_queue.pending:
            flat_group = self._reduce_queue.pending[0]
            flat_group.contribute_zeros()
            self._reduce_queue.add(flat_group)

    def finish(self) -> None:
        """Waits until all gradients are with their owners. Afterwards no group is whole."""
        uneven = {flat_group for number in self._uneven for flat_group in self._stages[number]}
        with self.comm_timer.counting():
            self.send_rest()
            used = self.used_anywhere()
            for flat_group in self.flat_groups:
                if not used[flat_group]:
                    flat_group.leave_out()
                elif flat_group in uneven:
                    flat_group.contribute_zeros()
                flat_group.end_backward()
                flat_group.deliver_gradient()
                flat_group.shard_changes()
            wait_for_host(self._group.device, offload=self._offload)
        self._begin_step()
        self.comm_timer.step_done()

    def discard_gradients(self) -> None:
        """Drops all that is left of a backward that an exception ended."""
        for flat_group in self.flat_groups:
            flat_group.begin_step()
        self._begin_step()

    def _begin_step(self) -> None:
        self._reduce_queue.clear()
        self._uneven = set()
        for flat_group in self.flat_groups:
            flat_group.sent = False
            flat_group.used.clear()
