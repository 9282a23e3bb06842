"""Top-K and random-K: a small share of the elements is sent, and the others wait in the residual."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist

from dtj_trainer.communication.compressor import Compressor, Place
from dtj_trainer.communication.config import CommunicationConfig

SAMPLED = 40_000
"""Elements from which the threshold is estimated. torch.topk over all of them takes most of a step on a CPU."""
BLOCK = 2**16
"""Elements of a block: a place within it takes two bytes."""


class TopK(Compressor):
    """Sends the elements with the largest magnitudes in bf16, as places in blocks of 65,536 elements.

    The threshold is estimated, and the surplus is cut exactly, so that all ranks send equally many. Where the estimate
    was too high, fewer elements are sent.
    """

    def __init__(self, group: Place, config: CommunicationConfig) -> None:
        super().__init__(group)
        self.config = config

    def count(self, step: int) -> int:
        """Returns how many elements are sent in a step."""
        return max(1, math.ceil(self.flat.numel() * self.config.ratio_at(step)))

    def exchange(self, gradients: Sequence[torch.Tensor], step: int) -> None:
        """Gathers the values and places of all ranks, and adds them up in the order of the ranks."""
        count, world = self.count(step), self.group.world_size
        places = self._select(gradients, count, step)
        values = torch.zeros(count, dtype=torch.bfloat16, device=self.flat.device)
        values[: places.numel()] = self.flat[places]
        # bf16 has rounded them, and the rest stays here.
        self.flat[places] -= values[: places.numel()].float()
        mine = pack(places, values, self.flat.numel())
        every = torch.empty(world * mine.numel(), dtype=torch.uint8, device=mine.device)
        with self.waiting():
            dist.all_gather_single(every, mine)
        received = [unpack(part, count, self.flat.numel()) for part in every.chunk(world)]
        starts = torch.tensor([item.offset for item in self.items])
        for found, sent in received:
            bounds = [*torch.searchsorted(found.cpu(), starts).tolist(), found.numel()]
            share = sent.float().div_(world)
            for number, (item, gradient) in enumerate(zip(self.items, gradients, strict=True)):
                first, last = bounds[number], bounds[number + 1]
                if first < last:
                    flat = gradient.view(-1) if gradient.is_contiguous() else gradient.reshape(-1)
                    flat.index_add_(0, found[first:last] - item.offset, share[first:last].to(gradient.dtype))
                    if not gradient.is_contiguous():
                        gradient.copy_(flat.view(gradient.shape))

    def _select(self, gradients: Sequence[torch.Tensor], count: int, step: int) -> torch.Tensor:
        """Adds the gradients to the residuals, zeroes them, and returns the places of the largest magnitudes.

        On a CPU all of this is one pass over memory, block by block.
        """
        total = self.flat.numel()
        if self.flat.is_cuda or total <= 4 * SAMPLED or not all(g.is_contiguous() for g in gradients):
            self.collect(gradients)
            for gradient in gradients:
                gradient.zero_()
            return largest(self.flat, count, step)
        looked = sampled_places(total, step)
        bounds = [*torch.searchsorted(looked, torch.tensor([item.offset for item in self.items])).tolist(), None]
        flats = [gradient.view(-1) for gradient in gradients]
        drawn = self.flat[looked]
        for number, (item, flat) in enumerate(zip(self.items, flats, strict=True)):
            own = slice(bounds[number], bounds[number + 1])
            drawn[own] += flat[looked[own] - item.offset]
        threshold = estimate(drawn.abs_(), count, total)
        magnitudes, chosen = torch.empty(BLOCK), torch.empty(BLOCK, dtype=torch.bool)
        found = []
        for item, flat in zip(self.items, flats, strict=True):
            for first in range(0, flat.numel(), BLOCK):
                gradient = flat[first : first + BLOCK]
                residual = self.flat[item.offset + first : item.offset + first + gradient.numel()]
                residual.add_(gradient)
                gradient.zero_()
                size = torch.abs(residual, out=magnitudes[: gradient.numel()])
                # NumPy's flatnonzero takes a sixth of the time of torch.nonzero.
                # A NaN is not below the threshold, and must be sent: it would stay here unseen.
                mask = torch.lt(size, threshold, out=chosen[: gradient.numel()]).logical_not_().numpy()
                found.append(torch.from_numpy(mask.nonzero()[0]).add_(item.offset + first))
        return trimmed(self.flat, torch.cat(found), count)

    def sent_bytes(self, step: int) -> int:
        """Returns the bytes of values, places and counts of blocks."""
        return packed_bytes(self.count(step), self.flat.numel())


class RandomK(Compressor):
    """Sends the same random elements on all ranks, so that no places are sent and one all-reduce adds them up."""

    def __init__(self, group: Place, config: CommunicationConfig) -> None:
        super().__init__(group)
        self.config = config

    def count(self, step: int) -> int:
        """Returns how many elements are sent in a step."""
        return max(1, int(self.flat.numel() * self.config.ratio_at(step)))

    def exchange(self, gradients: Sequence[torch.Tensor], step: int) -> None:
        """Sends one random element of each stretch of equal length."""
        self.collect(gradients)
        count = self.count(step)
        drawn = torch.rand(count, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        stretch = self.flat.numel() / count
        places = ((torch.arange(count, dtype=torch.float64) + drawn) * stretch).long()
        places = places.clamp_(max=self.flat.numel() - 1).to(self.flat.device)
        values = self.flat[places].div_(self.group.world_size)
        with self.waiting():
            dist.all_reduce(values)
        self.flat[places] = 0.0
        starts = torch.tensor([item.offset for item in self.items])
        bounds = [*torch.searchsorted(places.cpu(), starts).tolist(), count]
        for number, (item, gradient) in enumerate(zip(self.items, gradients, strict=True)):
            arrived = torch.zeros(item.shape.numel(), device=gradient.device)
            first, last = bounds[number], bounds[number + 1]
            arrived[places[first:last] - item.offset] = values[first:last]
            gradient.copy_(arrived.view(gradient.shape))

    def sent_bytes(self, step: int) -> int:
        """Returns the bytes of the values."""
        return 4 * self.count(step)


def largest(flat: torch.Tensor, count: int, step: int) -> torch.Tensor:
    """Returns the places, ascending, of about the `count` largest magnitudes; never more of them."""
    if count >= flat.numel():
        return torch.arange(flat.numel(), device=flat.device)
    magnitudes = flat.abs()
    if flat.is_cuda or flat.numel() <= 4 * SAMPLED:
        return magnitudes.topk(count, sorted=False).indices.sort().values
    threshold = estimate(magnitudes[sampled_places(flat.numel(), step)], count, flat.numel())
    return trimmed(flat, torch.from_numpy((magnitudes < threshold).logical_not_().numpy().nonzero()[0]), count)


def sampled_places(total: int, step: int) -> torch.Tensor:
    """Returns about 40,000 places at equal distances, others in each step.

    The distance is odd, so that all columns of a matrix are met, whose width is seldom odd.
    """
    stride = max(1, total // SAMPLED) | 1
    return torch.arange(step % stride, total, stride)


def estimate(sample: torch.Tensor, count: int, total: int) -> torch.Tensor:
    """Returns the magnitude that about `count` of `total` elements have, by a sample of them.

    Above zero, because elements that are zero need not be sent.
    """
    wanted = max(1, round(sample.numel() * count / total))
    return sample.kthvalue(sample.numel() - wanted + 1).values.clamp_(min=torch.finfo(torch.float32).tiny)


def trimmed(flat: torch.Tensor, places: torch.Tensor, count: int) -> torch.Tensor:
    """Returns the `count` of some ascending places that have the largest magnitudes."""
    if places.numel() <= count:
        return places
    return places[flat[places].abs().topk(count, sorted=False).indices.sort().values]


def packed_bytes(count: int, elements: int) -> int:
    """Returns the bytes of a rank's message: two for each value and place, four for each block's count."""
    return 4 * count + 4 * -(-elements // BLOCK)


def pack(places: torch.Tensor, values: torch.Tensor, elements: int) -> torch.Tensor:
    """Returns one message of fixed size: values, places within blocks, and how many of them each block has."""
    blocks = torch.bincount(places // BLOCK, minlength=-(-elements // BLOCK)).to(torch.int32)
    within = torch.zeros(values.numel(), dtype=torch.int16, device=places.device)
    within[: places.numel()] = (places % BLOCK - BLOCK // 2).to(torch.int16)
    return torch.cat([values.view(torch.uint8), within.view(torch.uint8), blocks.view(torch.uint8)])


def unpack(message: torch.Tensor, count: int, elements: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (places, values) of a message."""
    values, within, blocks = message.split_with_sizes([2 * count, 2 * count, 4 * -(-elements // BLOCK)])
    counts = blocks.clone().view(torch.int32).long()
    sent = int(counts.sum())
    base = torch.arange(counts.numel(), device=counts.device).repeat_interleave(counts) * BLOCK
    places = base + within.clone().view(torch.int16)[:sent].long() + BLOCK // 2
    return places, values.clone().view(torch.bfloat16)[:sent]
