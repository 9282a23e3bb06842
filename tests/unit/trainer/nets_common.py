"""Models of common shapes: look-alikes of timm's, torchvision's and transformers', a few parameters each."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import register_pytree_node

WIDTH = 8


class ModelOutput(OrderedDict[str, Any]):
    """As transformers': a dict whose values are attributes too, known to torch as a nesting."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


register_pytree_node(
    ModelOutput,
    lambda m: (list(m.values()), list(m)),
    lambda values, names: ModelOutput(zip(names, values, strict=True)),
)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc2(self.act(self.fc1(x)))
        return out


class Block(nn.Module):
    """timm's: norm, attention, norm, MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.mlp = Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


class PatchEmbed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Conv2d(1, WIDTH, kernel_size=4, stride=4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.proj(x).flatten(2).transpose(1, 2)
        return out


class VisionTransformer(nn.Module):
    """timm's: the blocks are a Sequential."""

    def __init__(self, depth: int = 3, heads: int = 0) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(torch.randn(1, 5, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*(Block() for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 2) for _ in range(heads))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch_embed(x)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        out: torch.Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return out


class Bottleneck(nn.Module):
    """torchvision's, with LayerNorm's kin in place of BatchNorm."""

    def __init__(self, inside: int, out: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(inside, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.norm1, self.norm2 = nn.GroupNorm(1, out), nn.GroupNorm(1, out)
        self.downsample = nn.Sequential(nn.Conv2d(inside, out, 1), nn.GroupNorm(1, out)) if inside != out else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)))))
        return functional.relu(h + (self.downsample(x) if self.downsample else x))


class ResNet(nn.Module):
    """torchvision's: four stages, each a Sequential; here one of them has a single block."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(1, 4), nn.ReLU())
        self.layer1 = nn.Sequential(Bottleneck(4, 4), Bottleneck(4, 4))
        self.layer2 = nn.Sequential(Bottleneck(4, 6))
        self.layer3 = nn.Sequential(Bottleneck(6, 8), Bottleneck(8, 8), Bottleneck(8, 8))
        self.fc = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer3(self.layer2(self.layer1(self.stem(x))))
        out: torch.Tensor = self.fc(x.mean((2, 3)))
        return out


class ConvNormAct(nn.Sequential):
    """torchvision's: a class of its own that is a Sequential."""

    def __init__(self, inside: int, out: int) -> None:
        super().__init__(nn.Conv2d(inside, out, 1), nn.GroupNorm(1, out), nn.SiLU())


class MBConv(nn.Module):
    """torchvision's: a Sequential of unlike layers in it."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(ConvNormAct(4, 8), ConvNormAct(8, 8), nn.Conv2d(8, 4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.block(x)
        return out


class EfficientNet(nn.Module):
    """torchvision's: one Sequential of stem, stages and head."""

    def __init__(self) -> None:
        super().__init__()
        stages = [nn.Sequential(MBConv()), nn.Sequential(MBConv(), MBConv())]
        self.features = nn.Sequential(ConvNormAct(1, 4), *stages, ConvNormAct(4, 8))
        self.classifier = nn.Sequential(nn.Dropout(0.0), nn.Linear(8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.classifier(self.features(x).mean((2, 3)))
        return out


class Stage(nn.Module):
    """timm's ConvNeXt and Swin: stages in a Sequential, blocks in a Sequential in each."""

    def __init__(self) -> None:
        super().__init__()
        self.downsample = nn.LayerNorm(WIDTH)
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.blocks(self.downsample(x))
        return out


class Staged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stages, self.head = PatchEmbed(), nn.Sequential(Stage(), Stage()), nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.stages(self.stem(x)).mean(1))
        return out


class Inline(nn.Module):
    """A Sequential in which blocks stand beside other layers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(PatchEmbed(), Block(), Block(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.net(x).mean(1)
        return out


class BertLayer(nn.Module):
    """transformers': takes a mask by keyword, gives a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.intermediate = Mlp()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None) -> tuple[torch.Tensor]:
        padding = attention_mask == 0 if attention_mask is not None else None
        h, _ = self.attention(hidden_states, hidden_states, hidden_states, key_padding_mask=padding, need_weights=False)
        h = self.norm(hidden_states + h)
        return (h + self.intermediate(h),)


class BertEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ModuleList(BertLayer() for _ in range(2))

    def forward(self, hidden: torch.Tensor, attention_mask: torch.Tensor) -> ModelOutput:
        for layer in self.layer:
            hidden = layer(hidden, attention_mask=attention_mask)[0]
        return ModelOutput(last_hidden_state=hidden)


class MaskedLm(nn.Module):
    """transformers' BertForMaskedLM: dicts in, a ModelOutput with the loss out, the decoder's
    weight is the embedding's."""

    VOCABULARY = 11

    def __init__(self) -> None:
        super().__init__()
        self.token_embeddings = nn.Embedding(self.VOCABULARY, WIDTH)
        self.register_buffer("position_ids", torch.arange(32).unsqueeze(0), persistent=False)
        self.position_embeddings = nn.Embedding(32, WIDTH)
        self.encoder = BertEncoder()
        self.decoder = nn.Linear(WIDTH, self.VOCABULARY)
        self.decoder.weight = self.token_embeddings.weight

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> ModelOutput:
        positions = self.position_ids[:, : input_ids.shape[1]]  # type: ignore[index]
        hidden = self.token_embeddings(input_ids) + self.position_embeddings(positions)
        logits = self.decoder(self.encoder(hidden, attention_mask)["last_hidden_state"])
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / labels.numel()
        return ModelOutput(loss=loss, logits=logits)


class Detector(nn.Module):
    """A backbone that is not trained, and whose norms stay in eval() whatever its owner calls."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.5))
        self.backbone.requires_grad_(False)
        self.backbone.eval()
        self.head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1), nn.Linear(WIDTH, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.backbone(x))
        return out


IMAGES: dict[str, type[nn.Module]] = {
    net.__name__: net for net in (VisionTransformer, ResNet, EfficientNet, Staged, Inline)
}
