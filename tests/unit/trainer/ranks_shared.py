"""Ranks of several tests: importable by the forked processes."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import resource
import runpy
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.checkpoint.contents import CheckpointState, leaves
from dtj_trainer.cli import guarded
from dtj_trainer.communication import CommunicationConfig
from dtj_trainer.components.batch_size import fits, largest_that_fits
from dtj_trainer.components.optimizer import OptimizerConfig
from dtj_trainer.components.precision import PrecisionConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.data.loader import LoaderConfig
from dtj_trainer.data.source import TensorData
from dtj_trainer.distributed.flat_shard import FlatShard
from dtj_trainer.examples import gpt
from dtj_trainer.examples.gpt import Gpt, GptConfig
from dtj_trainer.state import State, StateConfig
from dtj_trainer.strategies import (
    AutoConfig,
    DdpConfig,
    DdpScratchConfig,
    FsdpConfig,
    FsdpScratchConfig,
    HsdpConfig,
    Zero1Config,
    Zero2Config,
)
from dtj_trainer.strategies.scratch.ddp import ScratchDdpModel
from dtj_trainer.telemetry.record import Record
from dtj_trainer.trainer import Trainer

PLAIN = Path(__file__).parents[3] / "examples" / "torchrun_plain" / "train.py"


def plain(folder: str) -> None:
    """Runs the plain torchrun script."""
    runpy.run_path(str(PLAIN), run_name="plain")["main"](folder)


STRATEGIES = {
    "ddp": DdpConfig(bucket_cap_mb=0.01),
    "ddp_scratch": DdpScratchConfig(bucket_cap_mb=0.01),
    "fsdp": FsdpConfig(),
    "fsdp kept whole": FsdpConfig(reshard_after_forward=False),
    "fsdp offload": FsdpConfig(cpu_offload=True),
    "hsdp": HsdpConfig(),
    "fsdp_scratch": FsdpScratchConfig(),
    "fsdp_scratch offload": FsdpScratchConfig(cpu_offload=True),
    "fsdp_scratch optimizer offload": FsdpScratchConfig(cpu_offload="optimizer"),
    "zero1": Zero1Config(bucket_cap_mb=0.01),
    "zero2": Zero2Config(bucket_cap_mb=0.01),
}


def tiny_gpt() -> Gpt:
    torch.manual_seed(7)
    return Gpt(GptConfig(block=16, layers=3, heads=2, width=16))


def tokens(samples: int = 64, block: int = 16) -> TensorData:
    drawn = torch.randint(0, 4, (samples, block + 1), generator=torch.Generator().manual_seed(3))
    return TensorData(drawn[:, :-1], drawn[:, 1:])


def trained(trainer: Trainer, **changes: Any) -> tuple[list[float], dict[str, float]]:
    """Trains a tiny GPT for clipped, accumulated steps of 12 samples.

    Returns (losses, validation).
    """
    config = TrainerConfig(
        steps=changes.pop("steps", 5),
        global_batch_size=12,
        micro_batch_size=changes.pop("micro_batch_size", 2),
        clip_norm=changes.pop("clip_norm", 0.5),
        optimizer=OptimizerConfig(lr=1e-2),
        state=StateConfig(log_every_steps=1, checkpoint=changes.pop("checkpoint", CheckpointConfig())),
        **changes,
    )
    trainer.config = config
    losses: list[float] = []
    kept = Keep(losses)
    result = trainer.fit(tiny_gpt(), tokens(), loss=gpt.loss, validation=tokens(10), measure=gpt.measure, sinks=[kept])
    return losses, result.validation


class Keep:
    """A sink that keeps the losses."""

    def __init__(self, losses: list[float]) -> None:
        self.losses = losses

    def write(self, record: Record) -> None:
        assert record.loss is not None
        self.losses.append(record.loss)

    def close(self) -> None:
        pass


def all_strategies(out: str) -> None:
    """Trains with each strategy in one group; rank 0 writes the results."""
    trainer = Trainer(TrainerConfig(steps=1))
    results = {}
    for name, strategy in STRATEGIES.items():
        if name == "hsdp" and trainer.group.world_size > 2:
            strategy = HsdpConfig(shard_size=2)
        results[name] = trained(trainer, strategy=strategy)
    if trainer.group.rank == 0:
        Path(out).write_text(json.dumps(results))
    trainer.close()


class Recording(TensorData):
    """A data set that records the samples that it returned."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        super().__init__(*tensors)
        self.given: list[int] = []

    def get_batch(self, indices: Any) -> tuple[torch.Tensor, ...]:
        self.given += [int(i) for i in indices]
        return super().get_batch(indices)


def whole(leaf: Any) -> Any:
    """Returns a leaf of a state dict as it is without sharding; a collective for a sharded leaf."""
    if isinstance(leaf, DTensor):
        return leaf.full_tensor()
    if not isinstance(leaf, FlatShard):
        return leaf
    out = torch.zeros(leaf.shape, dtype=leaf.flat.dtype)
    for offsets, piece in leaf.chunks():
        out[tuple(slice(o, o + n) for o, n in zip(offsets, piece.shape, strict=True))] = piece
    dist.all_reduce(out)  # each element is some rank's, and zero elsewhere
    return out


def fingerprint(state: State) -> dict[str, str]:
    """Returns the SHA-256 of each tensor of the state by name, the same for every sharding."""
    out = {}
    for key, leaf in sorted(leaves(CheckpointState(state.objects).sharded())):
        if isinstance(leaf, (torch.Tensor, FlatShard)):
            out[key] = hashlib.sha256(whole(leaf).detach().contiguous().numpy().tobytes()).hexdigest()
    return out


def stage(directory: str, strategy: str, until: int, out: str) -> None:
    """Resumes with other initial weights, trains to step `until`; writes what it loaded, used,
    saved.
    """
    config = TrainerConfig(
        steps=until,
        global_batch_size=12,
        optimizer=OptimizerConfig(lr=1e-2),
        strategy=STRATEGIES[strategy],
        state=StateConfig(log_every_steps=1, checkpoint=CheckpointConfig(directory=Path(directory), every_steps=100)),
    )
    data = Recording(*tokens(60).tensors)
    outcome: dict[str, Any] = {}
    with Trainer(config) as trainer:
        torch.manual_seed(until)
        model = Gpt(GptConfig(block=16, layers=3, heads=2, width=16))
        trainer.on_start = lambda state: outcome.update(step=state.step, loaded=fingerprint(state))
        trainer.fit(model, data, loss=gpt.loss)
        outcome.update(saved=fingerprint(trainer.state), used=trainer.group.all_objects(data.given))
        if trainer.group.rank == 0:
            Path(out).write_text(json.dumps(outcome))


class Numbers:
    """A stream of samples that can only be read in order."""

    def __init__(self, data: TensorData, length: int) -> None:
        self.data, self.length = data, length

    def read(self, start: int) -> Iterator[Any]:
        return iter(self.data[i % len(self.data)] for i in range(start, self.length))


def features(out: str) -> None:
    """Repeats a small training with one thing changed at a time; rank 0 writes the results."""
    trainer = Trainer(TrainerConfig(steps=1))
    half = dict.fromkeys(("initial_scale",), 2.0**10)
    runs: dict[str, dict[str, Any]] = {
        "plain": {},
        "whole share at once": {"micro_batch_size": None},
        "one sample at a time": {"micro_batch_size": 1},
        "auto": {"micro_batch_size": "auto"},
        "auto fsdp": {"micro_batch_size": "auto", "strategy": FsdpConfig()},
        "recompute block": {"recompute": "block"},
        "recompute selective": {"recompute": "selective"},
        "recompute fsdp": {"recompute": "block", "strategy": FsdpConfig()},
        "recompute fsdp_scratch": {"recompute": "block", "strategy": FsdpScratchConfig()},
        "workers": {"data": LoaderConfig(workers=2)},
        "bf16": {"precision": PrecisionConfig(dtype="bf16")},
        "fp16": {"precision": PrecisionConfig(dtype="fp16", **half)},
        "fp16 fsdp": {"precision": PrecisionConfig(dtype="fp16", **half), "strategy": FsdpConfig()},
        "bf16 weights fsdp": {"strategy": FsdpConfig(param_dtype="bf16")},
        "bf16 hook": {"communication": CommunicationConfig(method="bf16")},
        "auto strategy": {"strategy": AutoConfig()},
        "ema": {"ema_decay": 0.5},
        "ema fsdp": {"ema_decay": 0.5, "strategy": FsdpConfig(), "validate_every_steps": 1},
        "overflow": {"precision": PrecisionConfig(dtype="fp16", initial_scale=2.0**60), "steps": 3},
    }
    results: dict[str, Any] = {name: trained(trainer, **changes) for name, changes in runs.items()}
    results["scale after overflow"] = trainer.group.all_objects(trainer.state.objects["precision"].loss_scale)  # type: ignore[attr-defined]
    if trainer.group.rank == 0:
        Path(out).write_text(json.dumps(results))
    trainer.close()


def started_by(out: str) -> None:
    """Writes the start method of a loader's worker in this rank."""
    Path(out).write_text(multiprocessing.get_start_method())


def bucket_traffic(out: str) -> None:
    """Counts the all-reduces of gradients in 4 steps of 3 micro-batches each."""
    calls = 0
    real = dist.all_reduce

    def counted(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += bool(kwargs.get("async_op"))
        return real(tensor, *args, **kwargs)

    dist.all_reduce = counted
    with Trainer(TrainerConfig(steps=1)) as trainer:
        trained(trainer, strategy=DdpScratchConfig(bucket_cap_mb=0.01), steps=4, micro_batch_size=2)
        model = trainer.state.objects["model"]
        assert isinstance(model, ScratchDdpModel)
        outcome = {
            "calls": calls,
            "buckets": len(model.buckets),
            "views": all(p.grad is v for b in model.buckets for p, v in zip(b.parameters, b.views, strict=True)),
        }
    Path(f"{out}-{os.environ['RANK']}").write_text(json.dumps(outcome))


def own_loop(directory: str, until: int, killed: bool = False) -> None:
    """Trains in a user's own loop, which saves step 4; `killed`: dies once that save is written."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    model.register_parameter(
        "unused", torch.nn.Parameter(torch.zeros(3))
    )  # no gradient, so no optimizer state in a checkpoint
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    state = State(
        StateConfig(log_every_steps=1, checkpoint=CheckpointConfig(directory=Path(directory), every_steps=100)),
        model=model,
        optimizer=optimizer,
    )
    for step in state.steps(until):
        x = torch.randn(8, 4)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state.report(loss=loss, samples=8)
        assert step == state.step
        if step == 3:
            state.save()
        deadline = time.monotonic() + 250
        while killed and step > 3 and time.monotonic() < deadline:
            if (Path(directory) / "step-00000004").is_dir():
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.001)
    state.close()


def different_rates() -> None:
    """Starts rank 1 with another learning rate."""
    rate = 0.1 if os.environ["RANK"] == "0" else 0.2

    def main() -> int:
        Trainer(TrainerConfig(steps=1, optimizer=OptimizerConfig(lr=rate)))
        return 0

    raise SystemExit(guarded(main))


def out_of_memory(out: str) -> None:
    """Looks for the largest allocation under a real limit of the address space."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, -1))

    def attempt(n: int) -> None:
        torch.ones(n * 2**24)  # 64 MiB each

    found = largest_that_fits(lambda n: fits(attempt, n), 100)
    Path(out).write_text(json.dumps({"largest": found, "one more": fits(attempt, found + 1)}))
