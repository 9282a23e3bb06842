"""A character-level GPT on the sources of Python's own standard library.

python -m dtj_trainer.examples.gpt --steps 300
torchrun --nproc-per-node 2 -m dtj_trainer.examples.gpt --width 384 --checkpoint-dir /tmp/gpt
torchrun --nproc-per-node 8 -m dtj_trainer.cli --config examples/trainer/gpt-124m.yaml
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from dtj_trainer.cli import guarded
from dtj_trainer.components.lr_schedule import ScheduleConfig
from dtj_trainer.components.optimizer import OptimizerConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.data.text import VOCABULARY, TokenData, token_file
from dtj_trainer.errors import ConfigError
from dtj_trainer.examples.flags import add_run_flags, run_example, state_config
from dtj_trainer.task import Task

DATA = Path(tempfile.gettempdir(), "dtj-stdlib")


@dataclass(frozen=True, kw_only=True, slots=True)
class GptConfig:
    """The size of the model; the defaults learn something within minutes on one CPU core."""

    vocabulary: int = VOCABULARY
    block: int = 128
    """Characters of context."""
    layers: int = 4
    heads: int = 4
    width: int = 128
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ConfigError(f"width={self.width} must be a multiple of heads={self.heads}")


SIZES = {
    "tiny": GptConfig(),
    # GPT-2 small and medium (Radford et al. 2019). Characters use a few rows of the vocabulary, which
    # is padded to a multiple of 128.
    "124m": GptConfig(vocabulary=50304, block=1024, layers=12, heads=12, width=768),
    "355m": GptConfig(vocabulary=50304, block=1024, layers=24, heads=16, width=1024),
}


class Block(nn.Module):
    """Pre-norm attention and MLP.

    Strategies shard, and activation checkpointing recomputes, block by block.
    """

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.norm1, self.norm2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (batch, time, width) to the same shape."""
        b, t, w = x.shape
        q, k, v = (
            y.view(b, t, self.heads, w // self.heads).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(w, dim=2)
        )
        attended = functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0
        )
        x = x + self.out(attended.transpose(1, 2).reshape(b, t, w))
        hidden: torch.Tensor = self.down(functional.gelu(self.up(self.norm2(x))))
        return x + functional.dropout(hidden, self.dropout, self.training)


class Gpt(nn.Module):
    """Embeddings, blocks, a head that shares the token embedding's weights."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.config = config
        self.token = nn.Embedding(config.vocabulary, config.width)
        self.place = nn.Embedding(config.block, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        self.head.weight = self.token.weight

    def materialize(self) -> None:
        """Creates the weights of a model that was built on the meta device, and draws each of them once."""
        self.to_empty(device="cpu")
        self.head.weight = self.token.weight
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, (nn.Linear, nn.Embedding)) and module is not self.head:
                nn.init.normal_(module.weight, std=0.02)
                if isinstance(module, nn.Linear) and module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Maps (batch, time) tokens to (batch, time, vocabulary) logits."""
        x = self.token(tokens) + self.place.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits

    def flops_per_token(self) -> float:
        """Returns the FLOPs of forward and backward, as in the PaLM paper.

        A token costs 6 per parameter, and 12·layers·width·block.
        """
        parameters = sum(p.numel() for p in self.parameters()) - self.place.weight.numel()
        return 6.0 * parameters + 12.0 * self.config.layers * self.config.width * self.config.block


def build(config: GptConfig, *, meta: bool = False) -> Gpt:
    """Returns a model of which each weight is drawn once, where `Gpt(config)` draws most of them twice.

    Args:
        config: The size.
        meta: Keep the model on the meta device, without weights.
    """
    with torch.device("meta"):
        model = Gpt(config)
    if not meta:
        model.materialize()
    return model


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Returns the mean cross entropy per character, in nats."""
    tokens, targets = batch
    return functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def measure(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """Returns loss and the fraction of characters guessed right."""
    tokens, targets = batch
    logits = model(tokens)
    return {
        "loss": functional.cross_entropy(logits.flatten(0, 1), targets.flatten()),
        "accuracy": (logits.argmax(-1) == targets).double().mean(),
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
    meta: bool = False,
) -> Task:
    """Builds the task that dtj-train finds as `task: dtj_trainer.examples.gpt:task`.

    Args:
        size: tiny, 124m or 355m; the next five change a part of it.
        block: Characters of context.
        layers: Blocks of the model.
        heads: Attention heads.
        width: Size of the residual stream.
        dropout: Probability, after attention and MLP.
        characters: How much of the standard library to read.
        data: Folder of the token file.
        meta: Only rank 0 has weights, and sends them to the others: for fsdp and hsdp.
    """
    if size not in SIZES:
        raise ConfigError(f"arguments.size={size!r}: write {', '.join(SIZES)}")
    changes = {"block": block, "layers": layers, "heads": heads, "width": width, "dropout": dropout}
    config = replace(SIZES[size], **{name: value for name, value in changes.items() if value is not None})  # type: ignore[arg-type]
    path = token_file(Path(data or DATA) / f"tokens-{characters}.bin", characters)
    absent = meta and os.environ.get("RANK", "0") != "0"
    model = Gpt(config) if size == "tiny" and not absent else build(config, meta=absent)
    return Task(
        model=model,
        data=TokenData(path, config.block, stop=0.98),
        loss=loss,
        validation=TokenData(path, config.block, start=0.98),
        measure=measure,
        tokens_per_sample=config.block,
        flops_per_sample=model.flops_per_token() * config.block,
    )


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    p = argparse.ArgumentParser(prog="python -m dtj_trainer.examples.gpt", description=(__doc__ or "").splitlines()[0])
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--batch-size", type=int, default=32, help="sequences per step over all ranks together")
    p.add_argument("--size", choices=SIZES, default="tiny", help="the next four change a part of it [%(default)s]")
    p.add_argument("--block", type=int)
    p.add_argument("--layers", type=int)
    p.add_argument("--heads", type=int)
    p.add_argument("--width", type=int)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--characters", type=int, default=4_000_000, help="how much of the standard library to read")
    p.add_argument("--data", type=Path, default=DATA, help="folder of the token file")
    p.add_argument("--threads", type=int, default=1, help="of one rank on the CPU; pods on one machine share its cores")
    add_run_flags(p)
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Trains, prints `final step=… loss=… accuracy=…` on rank 0."""
    args = parser().parse_args(argv)
    torch.manual_seed(args.seed)
    gpt = task(
        size=args.size,
        block=args.block,
        layers=args.layers,
        heads=args.heads,
        width=args.width,
        characters=args.characters,
        data=str(args.data),
    )
    config = TrainerConfig(
        steps=args.steps,
        global_batch_size=args.batch_size,
        seed=args.seed,
        clip_norm=1.0,
        cpu_threads=args.threads,
        optimizer=OptimizerConfig(lr=args.lr, weight_decay=0.1, betas=(0.9, 0.95)),
        schedule=ScheduleConfig(kind="cosine", warmup_steps=min(20, args.steps // 2), floor=0.1),
        state=state_config(args),
    )
    return run_example(gpt, config, args)


if __name__ == "__main__":
    raise SystemExit(guarded(main))
