"""ResNet-18, 34, 50 or 101 with BatchNorm (He et al. 2015), on drawn stripes whose direction is the class.

dtj-train --config examples/trainer/resnet.yaml
torchrun --nproc-per-node 2 -m dtj_trainer.cli --config examples/trainer/resnet.yaml --arguments.depth 50

Modules have torchvision's names. With `pixels` above 64, `init_from` and `init_partial: true` load the
weights of a torchvision model, all but those of the head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from dtj_trainer.errors import ConfigError
from dtj_trainer.examples.classify import loss, measure
from dtj_trainer.examples.images import CLASSES, Gratings
from dtj_trainer.task import Task

SMALL_PIXELS = 64
"""Up to this size the stem keeps the resolution, as the paper's networks for CIFAR do."""


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    EXPANSION = 1

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _convolution(inside, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _convolution(width, width, 3), nn.BatchNorm2d(width)
        self.downsample = _shortcut(inside, width, stride)
        nn.init.zeros_(self.bn2.weight)  # begins as the shortcut alone

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (n, inside, height, width) to (n, width, height/stride, width/stride)."""
        h = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(h)) + _passed(self.downsample, x))


class Bottleneck(nn.Module):
    """A 1x1, a 3x3 and a 1x1 convolution beside a shortcut; the stride is that of the 3x3 one."""

    EXPANSION = 4

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        out = width * self.EXPANSION
        self.conv1, self.bn1 = _convolution(inside, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _convolution(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = _convolution(width, out, 1), nn.BatchNorm2d(out)
        self.downsample = _shortcut(inside, out, stride)
        nn.init.zeros_(self.bn3.weight)  # begins as the shortcut alone

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (n, inside, height, width) to (n, 4 width, height/stride, width/stride)."""
        h = functional.relu(self.bn1(self.conv1(x)))
        h = functional.relu(self.bn2(self.conv2(h)))
        return functional.relu(self.bn3(self.conv3(h)) + _passed(self.downsample, x))


DEPTHS: dict[int, tuple[type[BasicBlock] | type[Bottleneck], tuple[int, int, int, int]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    34: (BasicBlock, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
    101: (Bottleneck, (3, 4, 23, 3)),
}
"""By depth, the block and the number of blocks in each stage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResNetConfig:
    """The size of the model."""

    depth: int = 18
    width: int = 64
    """Channels of the first stage; each later stage has twice as many."""
    pixels: int = 32
    """Height and width of an image."""
    classes: int = CLASSES

    def __post_init__(self) -> None:
        if self.depth not in DEPTHS:
            raise ConfigError(f"arguments.depth={self.depth}: write {', '.join(map(str, DEPTHS))}")
        if self.width < 1:
            raise ConfigError(f"arguments.width={self.width}: write 1 channel or more, such as 64")
        if self.pixels < 8:
            raise ConfigError(f"arguments.pixels={self.pixels}: write 8 or more, such as 32")


class ResNet(nn.Module):
    """A stem, four stages of residual blocks, the mean over the places, a linear head."""

    layer1: nn.Sequential
    layer2: nn.Sequential
    layer3: nn.Sequential
    layer4: nn.Sequential

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        kind, counts = DEPTHS[config.depth]
        small, width = config.pixels <= SMALL_PIXELS, config.width
        self.conv1 = _convolution(3, width, 3) if small else _convolution(3, width, 7, 2)
        self.bn1 = nn.BatchNorm2d(width)
        self.pool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        inside = width
        for stage, count in enumerate(counts):
            blocks = []
            for number in range(count):
                stride = 2 if stage and not number else 1
                blocks.append(kind(inside, width << stage, stride))
                inside = (width << stage) * kind.EXPANSION
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inside, config.classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps images (n, 3, height, width) to logits (n, classes)."""
        x = self.pool(functional.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: torch.Tensor = self.fc(x.mean((2, 3)))
        return logits


def task(depth: int = 18, width: int = 64, pixels: int = 32, images: int = 50_000) -> Task:
    """Builds the task that dtj-train finds as `task: dtj_trainer.examples.resnet:task`.

    Args:
        depth: 18, 34, 50 or 101.
        width: Channels of the first stage.
        pixels: Height and width of an image; above 64 the stem is that for ImageNet.
        images: Images of an epoch; a twentieth as many others are validated.
    """
    return Task(
        model=ResNet(ResNetConfig(depth=depth, width=width, pixels=pixels)),
        data=Gratings(images, pixels=pixels),
        loss=loss,
        validation=Gratings(max(1, images // 20), first=images, pixels=pixels),
        measure=measure,
        images_per_sample=1,
        flops_per_sample="auto",
    )


def _convolution(inside: int, out: int, size: int, stride: int = 1) -> nn.Conv2d:
    layer = nn.Conv2d(inside, out, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


def _shortcut(inside: int, out: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inside == out:
        return None
    return nn.Sequential(_convolution(inside, out, 1, stride), nn.BatchNorm2d(out))


def _passed(shortcut: nn.Sequential | None, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = shortcut(x) if shortcut is not None else x
    return out
