"""The queue of a step's gradients: what is sent at once, what waits for the last bucket, what stays for the next step.

No collective is started in the callback of another one: gloo matches collectives by their order, which must be the
same on all ranks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtj_trainer.communication.auto import CANDIDATES, MethodChoice
from dtj_trainer.communication.compressor import Compressor, Item, Place, Waiting
from dtj_trainer.communication.config import CommunicationConfig
from dtj_trainer.communication.hierarchy import Hierarchy, levels
from dtj_trainer.communication.power_sgd import PowerSgd
from dtj_trainer.communication.quantized import Int8, OneBit
from dtj_trainer.communication.sparse import RandomK, TopK

log = logging.getLogger(__name__)
CASTS = {"none": None, "fp16": torch.float16, "bf16": torch.bfloat16}
Arrived = torch.futures.Future[torch.Tensor]


def make_queue(model: nn.Module, group: Place, config: CommunicationConfig) -> GradientQueue:
    """Returns the queue of a model on its device, and logs what it sends."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    tables = [each for each in model.modules() if isinstance(each, nn.Embedding | nn.EmbeddingBag)]
    embeddings = {id(p) for table in tables for p in table.parameters()} if config.dense_embeddings else set()
    names: dict[int, list[str]] = {}  # a tied weight has several
    for name, p in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(p), []).append(name)
    if config.keeps_residuals:
        config.check_patterns({each for some in names.values() for each in some}, named)
    dense = {name for name, p in named.items() if any(map(config.is_dense, names[id(p)])) or id(p) in embeddings}
    queue = GradientQueue(named, group, config, dense)
    if group.rank == 0 and (config.method != "none" or config.hierarchical):
        log.info("communication %s", queue.describe())
    return queue


class GradientQueue:
    """Sends gradients bucket by bucket, in the same order on all ranks.

    A checkpoint has the number of steps and the compressor's own state, which are the same on all ranks, and each
    rank's residuals by the names of the parameters.
    """

    def __init__(
        self, named: Mapping[str, nn.Parameter], group: Place, config: CommunicationConfig, dense: Collection[str] = ()
    ) -> None:
        """Takes the parameters by name; the names in `dense` are never compressed."""
        self.config = config
        self.group = group
        self.steps = 0
        """Steps done, all of the run's: the warm-up counts them."""
        self.own_square = torch.zeros((), device=group.device)
        """The squared length of this rank's gradient of the last step, if it is measured."""
        self._own_square = torch.zeros((), device=group.device)
        self._choice = MethodChoice(config.method, config.plain_steps, group)
        self._has_residual = False
        self._parameters = dict(named)
        self._order = {id(p): (place, name) for place, (name, p) in enumerate(named.items())}
        self._compressor = _compressor(config, group)
        has_levels = config.hierarchical and levels(group) > 1
        self._hierarchy = Hierarchy(group, CASTS[config.method]) if has_levels else None
        self._items: dict[str, Item] = {}
        self._residual = torch.empty(0)
        self._all_bytes = sum(p.numel() * p.element_size() for p in named.values())
        self._compressed: dict[str, torch.Tensor] = {}
        """The gradients that wait for the last bucket, by name."""
        self._dense: list[tuple[int, torch.Tensor]] = []
        self._futures: list[tuple[Arrived, torch.Tensor]] = []
        if self._compressor is not None:
            compressible = {name: p for name, p in named.items() if name not in dense}
            self._prepare(compressible, self._compressor)
        if not self._items:
            self._choice.candidates = tuple(each for each in CANDIDATES if each in CASTS)

    @property
    def compresses(self) -> bool:
        """Whether this step's gradients wait for the last bucket."""
        return bool(self._items) and self.group.world_size > 1 and self._choice.at(self.steps) not in CASTS

    @property
    def defers(self) -> bool:
        """Whether this step's gradients arrive at `finish` only."""
        return self.compresses or self._hierarchy is not None

    def count_waits(self, waiting: Waiting) -> None:
        """Counts the waits for gradients that are deferred by a context of the caller."""
        if self._hierarchy is not None:
            self._hierarchy.waiting = waiting
        if self._compressor is not None:
            self._compressor.waiting = waiting

    def put(
        self,
        parameters: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor],
        flat: torch.Tensor,
        rest: torch.Tensor | None = None,
    ) -> Arrived:
        """Takes a full bucket; all ranks put the same buckets in the same order.

        Args:
            parameters: The parameters of the bucket.
            gradients: Their gradients, views of `flat`.
            flat: The whole bucket.
            rest: What lies in `flat` besides the gradients, to be summed up like them.

        Returns:
            The bucket, once it has the mean over the ranks.
        """
        if self.config.noise_scale:
            self._own_square += torch.nn.utils.get_total_norm(list(gradients)).square()
        if not self.compresses and self.group.world_size > 1:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                self._flush(self._order[id(parameter)][1], gradient)
            return self._send(flat) if self._hierarchy is None else self._hierarchy.put(flat)
        begun: list[tuple[Item, torch.Tensor]] = []
        for parameter, gradient in zip(parameters, gradients, strict=True):
            place, name = self._order[id(parameter)]
            if name in self._items:
                self._compressed[name] = gradient
                begun.append((self._items[name], gradient))
            else:
                self._dense.append((place, gradient))
        if begun and self._compressor is not None and self.group.world_size > 1:
            self._compressor.begin([item for item, _ in begun], [gradient for _, gradient in begun])
        if rest is not None:
            self._dense.append((len(self._order) + len(self._futures), rest))
        future: Arrived = torch.futures.Future(devices=[flat.device] if flat.is_cuda else None)
        self._futures.append((future, flat))
        return future

    @torch.no_grad()
    def finish(self) -> None:
        """Sends what has waited, after the last bucket of a step, and counts the step.

        A rank that is alone has nothing to send: its gradients get what its group had kept.
        """
        if self.group.world_size == 1:
            for name in self._items:
                # A model without DDP puts nothing, and its gradients are complete.
                self._flush(name, self._compressed.get(name, self._parameters[name].grad))
        if self._compressor is not None and self._futures and self.compresses:
            self._has_residual = True
            # By place: buckets of another size or order give the same bits.
            dense = [gradient for _, gradient in sorted(self._dense, key=lambda each: each[0])]
            whole = torch.cat([each.reshape(-1) for each in dense]).div_(self.group.world_size) if dense else None
            work = None if whole is None else dist.all_reduce(whole, async_op=True)
            gradients = [self._compressed[name] for name in self._items]
            self._compressor.exchange(gradients, max(0, self.steps - self.config.plain_steps))
            if work is not None and whole is not None:
                with self._compressor.waiting():
                    work.wait()
                for gradient, mean in zip(dense, whole.split_with_sizes([each.numel() for each in dense]), strict=True):
                    gradient.copy_(mean.view(gradient.shape))
        if self._hierarchy is not None:
            self._hierarchy.finish()
        self.own_square, self._own_square = self._own_square, torch.zeros_like(self._own_square)
        futures, self._futures = self._futures, []
        if not self.compresses:
            self._has_residual = False
        self.discard()
        self._choice.step_done(self.steps)
        self.steps += 1
        for future, flat in futures:
            future.set_result(flat)

    def discard(self) -> bool:
        """Forgets what has waited, and returns whether anything has: an exception has ended the backward."""
        had = bool(self._futures) or (self._hierarchy is not None and self._hierarchy.discard())
        if had and self._compressor is not None:
            self._compressor.discard()
        self._compressed.clear()
        self._dense.clear()
        self._futures.clear()
        self._own_square.zero_()
        return had

    def _flush(self, name: str, gradient: torch.Tensor | None) -> None:
        """Adds what earlier steps have kept to a gradient that will be sent whole."""
        if self._has_residual and name in self._items and gradient is not None:
            gradient.add_(self._items[name].residual)
            self._items[name].residual.zero_()

    def describe(self) -> str:
        """Returns what a step sends, in a sentence."""
        config = self.config
        if config.hierarchical:
            return self._describe_levels()
        if self._compressor is None:
            return f"{config.method}: a step sends {_megabytes(self._all_bytes // 2)} of {_megabytes(self._all_bytes)}"
        kept = 4 * self._residual.numel()
        sent = self._compressor.sent_bytes(config.anneal_steps) + self._all_bytes - kept
        compressed = f"{len(self._items)} of {len(self._order)} parameters"
        after = f", from step {config.plain_steps} on" if config.plain_steps else ""
        return (
            f"{config.method}: {compressed} are compressed; a step sends {_megabytes(sent)} "
            f"of {_megabytes(self._all_bytes)}{after}; residuals take {_megabytes(kept)}"
        )

    def _describe_levels(self) -> str:
        local, world = self.group.local_world_size, self.group.world_size
        if self._hierarchy is None:
            return f"{self.config.method}: {local} of {world} ranks are on each node, so that there is no hierarchy"
        size = self._all_bytes // (1 if self.config.method == "none" else 2)
        others = world // local - 1
        return f"{self.config.method}: {local} ranks of a node send {_megabytes(size)} in a step to {others} others"

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns what is the same on all ranks."""
        own = self._compressor.state_dict() if self._compressor else {}
        return {"steps": self.steps, "method": self.config.method, "compressor": own, **self._choice.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads what `state_dict` returned. A run that resumes with another method keeps its number of steps."""
        self.steps = state["steps"]
        self._has_residual = True
        self._choice.load_state_dict(state)
        if self._compressor is not None and state["method"] == self.config.method:
            self._compressor.load_state_dict(state["compressor"])

    def rank_tensors(self) -> dict[str, torch.Tensor]:
        """Returns this rank's residuals by parameter: the live tensors."""
        return {name: item.residual for name, item in self._items.items()}

    # --- sending -------------------------------------------------------------------------------------------------

    def _prepare(self, named: Mapping[str, nn.Parameter], compressor: Compressor) -> None:
        accepted = [
            (name, p)
            for name, p in named.items()
            if p.dim() > 1
            and p.numel() >= self.config.min_elements
            and p.dtype == torch.float32
            and compressor.accepts(name, p.shape)
        ]
        self._residual = torch.zeros(sum(p.numel() for _, p in accepted), device=self.group.device)
        offset = 0
        for name, p in accepted:
            residual = self._residual[offset : offset + p.numel()].view(p.shape)
            self._items[name] = Item(name, p.shape, offset, residual)
            offset += p.numel()
        if self._items:
            compressor.prepare(list(self._items.values()), self._residual)

    def _send(self, flat: torch.Tensor) -> Arrived:
        dtype = CASTS.get(self._choice.at(self.steps))
        sent = (flat if dtype is None else flat.to(dtype)).div_(self.group.world_size)
        work = dist.all_reduce(sent, async_op=True)
        if work is None:
            raise RuntimeError("all_reduce(async_op=True) returned no handle: this rank is not in the process group")
        then: Callable[[Any], torch.Tensor]
        then = (lambda _: flat) if sent is flat else (lambda _: flat.copy_(sent))
        arrived: Arrived = work.get_future().then(then)
        return arrived


def _compressor(config: CommunicationConfig, group: Place) -> Compressor | None:
    match config.method:
        case "powersgd" | "auto":
            return PowerSgd(group, config)
        case "topk":
            return TopK(group, config)
        case "randomk":
            return RandomK(group, config)
        case "int8":
            return Int8(group)
        case "onebit":
            return OneBit(group)
        case _:
            return None


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.2f} MB"
