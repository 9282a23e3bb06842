"""A byte or a bit for each element, with a scale for each stretch of elements."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from dtj_trainer.communication.compressor import Compressor

STRETCH = 1024
"""Elements that share a scale of four bytes."""


class _Quantized(Compressor):
    def _padded(self, multiple: int) -> torch.Tensor:
        """Returns the residual, with zeros behind it up to a multiple of some elements."""
        rest = -self.flat.numel() % multiple
        return torch.cat([self.flat, self.flat.new_zeros(rest)]) if rest else self.flat

    def _deliver(self, mean: torch.Tensor, gradients: Sequence[torch.Tensor]) -> None:
        """Writes the mean, which all ranks have alike, into the gradients."""
        for item, gradient in zip(self.items, gradients, strict=True):
            gradient.copy_(mean[item.offset : item.offset + item.shape.numel()].view(gradient.shape))


class Int8(_Quantized):
    """Each rank sums a part of the elements, and all ranks get the sums: both ways a byte for each element.

    The sums are rounded a second time. The rest stays in the residual of the rank that has rounded, so that nothing is
    lost.
    """

    def exchange(self, gradients: Sequence[torch.Tensor], step: int) -> None:
        """Sends each part to the rank that sums it, and the means to all ranks."""
        self.collect(gradients)
        world, rank = self.group.world_size, self.group.rank
        whole = self._padded(world * STRETCH).view(-1, STRETCH)
        levels, scales = quantize(whole)
        self.flat.sub_(dequantize(levels, scales).view(-1)[: self.flat.numel()])
        mine = torch.cat([levels.view(world, -1).view(torch.uint8), scales.view(world, -1).view(torch.uint8)], dim=1)
        parts = torch.empty_like(mine)
        with self.waiting():
            dist.all_to_all_single(parts, mine)
        size = levels.numel() // world
        mean = torch.zeros(size // STRETCH, STRETCH, device=whole.device)
        for part in parts:
            mean.add_(_read(part, size))
        mean.div_(world)
        levels, scales = quantize(mean)
        lost = mean.sub_(dequantize(levels, scales)).view(-1)
        first = rank * size
        own = self.flat[first : first + size]
        # A mean over all ranks will contain it, hence the factor.
        own.add_(lost[: own.numel()], alpha=world)
        message = torch.cat([levels.view(-1).view(torch.uint8), scales.view(-1).view(torch.uint8)])
        every = torch.empty(world * message.numel(), dtype=torch.uint8, device=message.device)
        with self.waiting():
            dist.all_gather_single(every, message)
        self._deliver(torch.cat([_read(part, size).view(-1) for part in every.chunk(world)]), gradients)

    def sent_bytes(self, step: int) -> int:
        """Returns the bytes of both ways."""
        return 2 * (self.flat.numel() + 4 * -(-self.flat.numel() // STRETCH))


class OneBit(_Quantized):
    """Sends signs, and the mean magnitude of each stretch (Seide et al. 2014; Karimireddy et al. 2019)."""

    def exchange(self, gradients: Sequence[torch.Tensor], step: int) -> None:
        """Gathers the signs of all ranks, and takes the mean in the order of the ranks."""
        self.collect(gradients)
        world = self.group.world_size
        whole = self._padded(STRETCH).view(-1, STRETCH)
        scales = whole.abs().mean(1)
        message = torch.cat([pack_signs(whole.view(-1)), scales.view(torch.uint8)])
        self.flat.sub_(_signed(message, whole.numel())[: self.flat.numel()])
        every = torch.empty(world * message.numel(), dtype=torch.uint8, device=message.device)
        with self.waiting():
            dist.all_gather_single(every, message)
        mean = torch.zeros(whole.numel(), device=whole.device)
        for part in every.chunk(world):
            mean.add_(_signed(part, whole.numel()))
        self._deliver(mean.div_(world), gradients)

    def sent_bytes(self, step: int) -> int:
        """Returns the bytes of signs and scales."""
        return -(-self.flat.numel() // STRETCH) * (STRETCH // 8 + 4)


def quantize(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (levels from -127 to 127 as int8, the scale of each row) of rows of fp32."""
    scales = rows.abs().amax(1).div_(127)
    levels = (rows / scales.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(1)).round_().to(torch.int8)
    return levels, scales


def dequantize(levels: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Returns the rows that levels and scales stand for."""
    return levels.float().mul_(scales.unsqueeze(1))


def pack_signs(flat: torch.Tensor) -> torch.Tensor:
    """Returns a bit for each element, set unless it is negative."""
    bits = (flat >= 0).view(-1, 8).to(torch.uint8)
    out = bits[:, 0].clone()
    for place in range(1, 8):
        out |= bits[:, place] << place
    return out


def unpack_signs(packed: torch.Tensor) -> torch.Tensor:
    """Returns 1 for each bit that is set, and -1 for the others."""
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed.unsqueeze(1) >> places) & 1).view(-1).float().mul_(2).sub_(1)


def _read(message: torch.Tensor, size: int) -> torch.Tensor:
    levels, scales = message[:size].view(torch.int8), message[size:].clone().view(torch.float32)
    return dequantize(levels.view(-1, STRETCH), scales)


def _signed(message: torch.Tensor, size: int) -> torch.Tensor:
    signs = unpack_signs(message[: size // 8]).view(-1, STRETCH)
    return signs.mul_(message[size // 8 :].clone().view(torch.float32).unsqueeze(1)).view(-1)
