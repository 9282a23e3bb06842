"""A BERT-like encoder that guesses masked characters of Python's standard library, with padding.

dtj-train --config examples/trainer/bert.yaml
torchrun --nproc-per-node 2 -m dtj_trainer.cli --config examples/trainer/bert.yaml --arguments.size base
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from dtj_trainer.data.masked_text import IGNORED, MASKED_VOCABULARY, MaskedTextData
from dtj_trainer.data.text import token_file
from dtj_trainer.errors import ConfigError
from dtj_trainer.examples.gpt import DATA
from dtj_trainer.task import Task

Batch = Mapping[str, torch.Tensor]
"""As MaskedTextData.get_batch returns it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BertConfig:
    """The size of the model; the defaults learn something within minutes on one CPU core."""

    vocabulary: int = MASKED_VOCABULARY
    block: int = 128
    """Characters of the longest sample."""
    layers: int = 4
    heads: int = 4
    width: int = 128
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ConfigError(f"width={self.width} must be a multiple of heads={self.heads}")


SIZES = {
    "tiny": BertConfig(),
    # BERT-base; characters use a few rows of its vocabulary, which is padded to a multiple of 64.
    "base": BertConfig(vocabulary=30528, block=512, layers=12, heads=12, width=768),
}


class EncoderBlock(nn.Module):
    """Pre-norm attention over all places that are no padding, and an MLP."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        self.norm1, self.norm2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def forward(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Maps (batch, time, width) to the same shape; `attended` is (batch, 1, 1, time)."""
        b, t, w = x.shape
        q, k, v = (
            y.view(b, t, self.heads, w // self.heads).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(w, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=attended, dropout_p=dropout)
        x = x + functional.dropout(self.out(mixed.transpose(1, 2).reshape(b, t, w)), self.dropout, self.training)
        hidden: torch.Tensor = self.down(functional.gelu(self.up(self.norm2(x))))
        return x + functional.dropout(hidden, self.dropout, self.training)


class Bert(nn.Module):
    """Embeddings, blocks, a head that shares the token embedding's weights."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.token = nn.Embedding(config.vocabulary, config.width)
        self.place = nn.Embedding(config.block, config.width)
        self.blocks = nn.ModuleList(EncoderBlock(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.transform = nn.Linear(config.width, config.width)
        self.norm2 = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        self.head.weight = self.token.weight

    def forward(self, tokens: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Maps (batch, time) tokens to (batch, time, vocabulary) logits."""
        x = self.token(tokens) + self.place.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, attended[:, None, None, :])
        logits: torch.Tensor = self.head(self.norm2(functional.gelu(self.transform(self.norm(x)))))
        return logits

    def flops(self, tokens: float, squared_tokens: float) -> float:
        """Returns the FLOPs of forward and backward for a sample, as in the PaLM paper.

        A token costs 6 per parameter, and 12·layers·width for each token that it attends to.
        Padding is no work of the model.

        Args:
            tokens: Mean number of tokens of a sample.
            squared_tokens: Mean of its square.
        """
        parameters = sum(p.numel() for p in self.parameters()) - self.place.weight.numel()
        return 6.0 * parameters * tokens + 12.0 * self.config.layers * self.config.width * squared_tokens


def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Returns the mean over samples of each sample's cross entropy per masked character, in nats.

    A sample weighs the same whatever its length, so that the loss does not depend on how ranks
    and micro-batches cut the batch.
    """
    return _per_sample(_entropies(model(batch["tokens"], batch["attended"]), batch["targets"]), batch["targets"]).mean()


def measure(model: nn.Module, batch: Batch) -> Mapping[str, torch.Tensor]:
    """Returns loss and the fraction of masked characters guessed right, each a mean over samples."""
    targets = batch["targets"]
    logits = model(batch["tokens"], batch["attended"])
    return {
        "loss": _per_sample(_entropies(logits, targets), targets).mean(),
        "accuracy": _per_sample((logits.argmax(-1) == targets).double(), targets).mean(),
    }


def task(
    size: str = "tiny",
    block: int | None = None,
    layers: int | None = None,
    heads: int | None = None,
    width: int | None = None,
    dropout: float | None = None,
    characters: int = 4_000_000,
    data: str | None = None,
) -> Task:
    """Builds the task that dtj-train finds as `task: dtj_trainer.examples.bert:task`.

    Args:
        size: tiny, or base (BERT-base, 109 M parameters); the fields below change a part of it.
        block: Characters of the longest sample.
        layers: Blocks of the model.
        heads: Attention heads.
        width: Size of the residual stream.
        dropout: Probability, after attention and MLP.
        characters: How much of the standard library to read.
        data: Folder of the token file.
    """
    if size not in SIZES:
        raise ConfigError(f"arguments.size={size!r}: write {' or '.join(SIZES)}")
    changes = {"block": block, "layers": layers, "heads": heads, "width": width, "dropout": dropout}
    config = replace(SIZES[size], **{name: value for name, value in changes.items() if value is not None})  # type: ignore[arg-type]
    path = token_file(Path(data or DATA) / f"tokens-{characters}.bin", characters)
    model, train = Bert(config), MaskedTextData(path, config.block, stop=0.98)
    lengths = train.lengths
    tokens, squared = sum(lengths) / len(lengths), sum(n * n for n in lengths) / len(lengths)
    return Task(
        model=model,
        data=train,
        loss=loss,
        validation=MaskedTextData(path, config.block, start=0.98),
        measure=measure,
        tokens_per_sample=tokens,
        flops_per_sample=model.flops(tokens, squared),
    )


def _entropies(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Returns the cross entropy at each place, (batch, time), 0 where nothing is to be guessed."""
    return functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none", ignore_index=IGNORED)


def _per_sample(values: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Returns each sample's mean of `values` (batch, time) over its masked places."""
    masked = targets != IGNORED
    return (values * masked).sum(1) / masked.sum(1)
