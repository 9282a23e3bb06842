"""Functions for the ranks of test_common_nets: models of common shapes, trained by every strategy."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from dtj_trainer.components.optimizer import OptimizerConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.data.source import TensorData
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.strategies import (
    DdpConfig,
    DdpScratchConfig,
    FsdpConfig,
    FsdpScratchConfig,
    Zero1Config,
    Zero2Config,
    make,
)
from dtj_trainer.strategies.scratch import flat_params, reduce_queue
from dtj_trainer.strategies.scratch.fsdp_model import ScratchFsdpModel
from dtj_trainer.trainer import Trainer
from tests.unit.trainer.nets import WIDTH, Net
from tests.unit.trainer.nets_common import IMAGES, Block, MaskedLm, VisionTransformer
from tests.unit.trainer.ranks import Records

STRATEGIES = {
    "ddp": DdpConfig(),
    "ddp_scratch": DdpScratchConfig(bucket_cap_mb=1e-4),
    "fsdp": FsdpConfig(),
    "fsdp_scratch": FsdpScratchConfig(),
}


class Sentences:
    """Sentences as a tokenizer returns them: dicts of ids, mask and labels."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        drawn = torch.Generator().manual_seed(index)
        ids = torch.randint(0, MaskedLm.VOCABULARY, (6,), generator=drawn)
        return {"input_ids": ids, "attention_mask": (torch.arange(6) < 3 + index % 4).long(), "labels": ids.flip(0)}


def images() -> TensorData:
    drawn = torch.Generator().manual_seed(4)
    return TensorData(torch.randn(16, 1, 8, 8, generator=drawn), torch.randint(0, 3, (16,), generator=drawn))


def cross_entropy(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def language_loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    loss: torch.Tensor = model(**batch).loss
    return loss


def losses_of(trainer: Trainer, build: Callable[[], nn.Module], data: Any, loss: Any, **options: Any) -> list[float]:
    torch.manual_seed(2)
    sink = Records()
    trainer.config = TrainerConfig(
        **({"steps": 3, "global_batch_size": 8, "optimizer": OptimizerConfig(lr=1e-2)} | options)
    )
    trainer.config.state.log_every_steps = 1
    trainer.fit(build(), data, loss=loss, sinks=[sink])
    return [float(record["loss"]) for record in sink.records]


def common_nets(out: str) -> None:
    """Trains every net by every strategy, and some with recompute. Rank 0 writes the losses."""
    results: dict[str, dict[str, list[float]]] = {}
    with Trainer(TrainerConfig(steps=1)) as trainer:
        for name, config in STRATEGIES.items():
            results[name] = {
                n: losses_of(trainer, net, images(), cross_entropy, strategy=config) for n, net in IMAGES.items()
            }
            results[name]["MaskedLm"] = losses_of(trainer, MaskedLm, Sentences(), language_loss, strategy=config)
            again = {"strategy": config, "recompute": "block", "blocks": "Block"}
            results[name]["VisionTransformer again"] = losses_of(
                trainer, VisionTransformer, images(), cross_entropy, **again
            )
        if trainer.group.rank == 0:
            Path(out).write_text(json.dumps(results))


def recomputed(out: str) -> None:
    """Prints how often the blocks of a ViT are called in a step, with and without recompute."""
    called: Counter[str] = Counter()
    real = Block.forward
    mode = "none"

    def counted(self: Block, x: torch.Tensor) -> torch.Tensor:
        called[mode] += 1
        return real(self, x)

    Block.forward = counted  # type: ignore[method-assign]
    with Trainer(TrainerConfig(steps=1)) as trainer:
        for mode in ("none", "block"):
            losses_of(trainer, VisionTransformer, images(), cross_entropy, steps=1, recompute=mode)
    Path(out).write_text(json.dumps(called))


class Partly(nn.Module):
    """A block of which a rank computes only one half in every other forward; the other rank begins with the other."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.calls = int(os.environ["RANK"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        out: torch.Tensor = torch.tanh(self.always(x))
        return out + self.sometimes(x) if self.calls % 2 else out


class LeftOut(Net):
    """A model of which every rank leaves out another set of its five blocks in each forward, of all sizes."""

    PLANS = ([{1}, {2}], [{0}, set()], [{1, 2}, {4}], [{3, 4}, {0, 1}], [set(), {0, 1, 2, 3, 4}], [{2}, {2}])

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Partly() for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.PLANS[self.steps % len(self.PLANS)][int(os.environ["RANK"])]
        self.steps += 1
        x = self.enter(x)
        for number, block in enumerate(self.blocks.children()):
            x = x if number in out else block(x)
        result: torch.Tensor = self.head(x)
        return result


def left_out(out: str) -> None:
    """Trains LeftOut by six strategies, with one, two and three micro-batches a step."""
    group = Group.open(WorkerEnv.read())
    reduce_queue.PATIENCE_SECONDS = 0.3
    results = {}
    for name, config in {
        "ddp": DdpConfig(find_unused_parameters=True),
        **{k: STRATEGIES[k] for k in SCRATCH},
        **ZERO,
        "fsdp_scratch, every": FsdpScratchConfig(reduce_every_micro_batch=True),
    }.items():
        for micro in (1, 2, 3):
            strategy = make(config)
            torch.manual_seed(1)
            wrapped = strategy.wrap(LeftOut(), group)
            optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
            drawn = torch.Generator().manual_seed(5 + group.rank)
            losses = []
            for _ in range(6):
                for number in range(micro):
                    with strategy.accumulate(wrapped, last=number + 1 == micro):
                        value = wrapped(torch.randn(4, WIDTH, generator=drawn)).square().mean()
                        value.backward()
                strategy.finish(wrapped)
                optimizer.step()
                strategy.zero_grad(wrapped, optimizer)
                losses.append(float(group.gather(value.detach()).mean()))
            results[f"{name} {micro}"] = losses
    if group.rank == 0:
        Path(out).write_text(json.dumps(results))
    group.close()


SCRATCH = ("ddp_scratch", "fsdp_scratch")
ZERO = {"zero1": Zero1Config(bucket_cap_mb=1e-4), "zero2": Zero2Config(bucket_cap_mb=1e-4)}


def bytes_at_wrap(out: str) -> None:
    """Writes the bytes of a model's weights before fsdp_scratch wraps it, after each flat parameter
    group, and at the end."""
    group = Group.open(WorkerEnv.read())
    model = VisionTransformer(depth=6)
    own = list(model.parameters())

    def held() -> int:
        storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in own}
        return sum(storages.values())

    sizes, real = [held()], flat_params.FlatParamGroup.__init__

    def noted(self: flat_params.FlatParamGroup, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        sizes.append(held())

    flat_params.FlatParamGroup.__init__ = noted  # type: ignore[method-assign]
    wrapped = make(FsdpScratchConfig()).wrap(model, group)
    assert isinstance(wrapped, ScratchFsdpModel)
    if group.rank == 0:
        Path(out).write_text(json.dumps(sizes))
    group.close()


def from_meta(out: str) -> None:
    """Writes the losses where rank 0 alone has built the model, beside those where all ranks have."""
    results = {}
    with Trainer(TrainerConfig(steps=1)) as trainer:
        for name, net, data, loss in (
            ("VisionTransformer", VisionTransformer, images(), cross_entropy),
            ("MaskedLm", MaskedLm, Sentences(), language_loss),
        ):

            def on_meta(net: type[nn.Module] = net) -> nn.Module:
                with torch.device("meta" if trainer.group.rank else "cpu"):
                    return net()

            results[name] = [losses_of(trainer, b, data, loss, strategy=FsdpConfig()) for b in (net, on_meta)]
        if trainer.group.rank == 0:
            Path(out).write_text(json.dumps(results))
