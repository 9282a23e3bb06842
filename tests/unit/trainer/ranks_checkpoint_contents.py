"""Functions for the ranks of test_checkpoint_contents, importable by the forked processes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.checkpoint.contents import CheckpointState, assign_writers
from dtj_trainer.checkpoint.export import export
from dtj_trainer.checkpoint.retention import RetentionConfig
from dtj_trainer.checkpoint.write import Writer
from dtj_trainer.cli import guarded
from dtj_trainer.components.optimizer import OptimizerConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.data.source import TensorData
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.errors import CheckpointError, TrainerError
from dtj_trainer.examples import gpt
from dtj_trainer.state import State, StateConfig
from dtj_trainer.strategies import DdpConfig, FsdpConfig
from dtj_trainer.trainer import Trainer
from tests.unit.trainer.nets import WIDTH, Net, Normalized
from tests.unit.trainer.ranks_shared import STRATEGIES, fingerprint, tiny_gpt, tokens

WITH_STATISTICS = ("ddp", "ddp_scratch", "fsdp", "hsdp", "fsdp_scratch")


def samples(count: int = 32) -> TensorData:
    drawn = torch.Generator().manual_seed(11)
    return TensorData(3 * torch.randn(count, WIDTH, generator=drawn) + 1, torch.randn(count, 1, generator=drawn))


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return functional.mse_loss(model(batch[0]), batch[1])


def measure(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
    return {"loss": loss(model, batch)}


def config(directory: Path | None, **changes: Any) -> TrainerConfig:
    checkpoint = CheckpointConfig(
        directory=directory, every_steps=changes.pop("every", 2), retention=changes.pop("retention", RetentionConfig())
    )
    state = StateConfig(
        log_every_steps=changes.pop("log", 1),
        checkpoint=checkpoint,
        collective_timeout_seconds=250.0,
        **{k: changes.pop(k) for k in ("max_nonfinite",) if k in changes},
    )
    return TrainerConfig(
        **{"steps": 4, "global_batch_size": 8, "optimizer": OptimizerConfig(lr=1e-2), "state": state} | changes,
    )


def in_folders_of_their_own(base: str) -> None:
    """Gives each rank another folder at the same path, as an emptyDir does on two nodes."""
    own = Path(base, os.environ["RANK"])
    own.mkdir()
    os.chdir(own)

    def main() -> int:
        with Trainer(config(Path("checkpoints"))) as trainer:
            trainer.fit(Net(), samples(), loss=loss)
        return 0

    raise SystemExit(guarded(main))


def with_other_variables(kind: str, name: str, value: str) -> None:
    """Starts rank 1 with another variable, or without it if `value` is empty."""
    if os.environ["RANK"] == "1":
        os.environ.pop(name, None)
        if value:
            os.environ[name] = value

    def main() -> int:
        if kind == "Trainer":
            with Trainer(config(None, every=None)) as trainer:
                trainer.fit(Net(), samples(), loss=loss)
            return 0
        model = Net()
        state = State(
            config(None, every=None).state, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)
        )
        for _ in state.steps(4):
            state.report(loss=0.0)
        state.close()
        return 0

    raise SystemExit(guarded(main))


def statistics(directory: str, out: str) -> None:
    """Trains a net with a BatchNorm by each strategy.

    Rank 0 writes the validation, and that of the exported model.
    """
    trainer = Trainer(config(None))
    results = {}
    for name in WITH_STATISTICS:
        folder = Path(directory, name)
        trainer.config = config(folder, strategy=STRATEGIES[name])
        torch.manual_seed(1)
        result = trainer.fit(Normalized(), samples(), loss=loss, validation=samples(10), measure=measure)
        live = next(b for n, b in trainer.state.objects["model"].named_buffers() if n.endswith("running_mean"))  # type: ignore[attr-defined]
        live = trainer.group.from_first(live.tolist())
        if trainer.group.rank == 0:
            export(folder, folder / "model.pt")
            alone = Normalized()
            alone.load_state_dict(torch.load(folder / "model.pt"))
            alone.eval()
            with torch.no_grad():
                validation = float(loss(alone, samples(10).tensors))
            mean = alone.norm.running_mean
            assert mean is not None
            results[name] = {
                "in the run": result.validation["loss"],
                "exported": validation,
                "live": live,
                "saved": mean.tolist(),
            }
    wrapped = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), DistributedDataParallel(nn.BatchNorm1d(2))))
    contents = CheckpointState({"model": wrapped})
    owners = assign_writers(contents.sharded(), 2, contents.buffer_keys())
    if trainer.group.rank == 0:
        results["owners"] = {key: owner for key, owner in owners.items() if "running" in key}
        Path(out).write_text(json.dumps(results))
    trainer.close()


def encoder_and_head(directory: str, out: str) -> None:
    """Saves one optimizer over two modules, and loads it into modules that are initialized differently."""
    group = Group.open(WorkerEnv.read(), timeout=timedelta(seconds=250))
    results: dict[str, Any] = {}
    for until in (2, 4):
        torch.manual_seed(until)
        encoder, head = (DistributedDataParallel(nn.Linear(a, b)) for a, b in ((WIDTH, WIDTH), (WIDTH, 1)))
        optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=0.1)
        checkpoint = CheckpointConfig(directory=Path(directory), every_steps=1)
        state = State.attach(
            StateConfig(checkpoint=checkpoint), WorkerEnv.read(), group, enc=encoder, head=head, optimizer=optimizer
        )
        state.on_start = lambda s, until=until: results.update({f"loaded for {until}": fingerprint(s), "step": s.step})  # type: ignore[misc]
        for _ in state.steps(until):
            optimizer.zero_grad()
            value = functional.mse_loss(head(encoder(samples().tensors[0])), samples().tensors[1])
            value.backward()
            optimizer.step()
            state.report(loss=value)
        results[f"saved at {until}"] = fingerprint(state)
    if group.rank == 0:
        Path(out).write_text(json.dumps(results))
    group.close()


class Sampler:
    """A state part whose state can't be loaded."""

    def state_dict(self) -> dict[str, Any]:
        return {"folder": Path("/data")}

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError("never loaded")


def unloadable(directory: str) -> None:
    """Runs a user's own loop with such a part."""

    def main() -> int:
        model = nn.Linear(1, 1)
        checkpoint = CheckpointConfig(directory=Path(directory), every_steps=1)
        state = State(StateConfig(checkpoint=checkpoint), model=model, sampler=Sampler())
        for _ in state.steps(3):
            print("a step")
        state.close()
        return 0

    raise SystemExit(guarded(main))


def turned_nan(directory: str, out: str) -> None:
    """Trains with a loss that is NaN from step 3 on.

    Rank 0 writes, by strategy and limit, how it ended and what was saved.
    """
    trainer = Trainer(config(None))
    results: dict[str, Any] = {}
    for name, limit in (("ddp", 3), ("fsdp", 0), ("fsdp_scratch", 0)):
        calls = 0

        def spoiled(model: nn.Module, batch: Any) -> torch.Tensor:
            nonlocal calls
            calls += 1
            return loss(model, batch) * (float("nan") if calls >= 3 else 1.0)

        folder = Path(directory, name)
        kept = {"retention": RetentionConfig(keep_last=1), "max_nonfinite": limit}
        trainer.config = config(folder, strategy=STRATEGIES[name], steps=12, **kept)
        trainer.config.state.checkpoint.max_failures = 0
        trainer.config.state.checkpoint.asynchronous = False
        try:
            ended = f"loss={trainer.fit(Net(), samples(), loss=spoiled).loss}"
        except TrainerError as e:
            ended = f"{type(e).__name__}: {e}"
        committed = sorted(p.name for p in folder.glob("step-*"))
        results[name] = trainer.group.all_objects({"ended": ended, "calls": calls, "committed": committed})
    if trainer.group.rank == 0:
        Path(out).write_text(json.dumps(results))
    trainer.close()


def overdue_on_one_rank(directory: str, out: str) -> None:
    """Begins a save that never ends and is overdue on rank 1 alone.

    Each rank prints how it ended.
    """
    hang: Callable[..., Any] = lambda *_: __import__("threading").Event().wait()  # noqa: E731
    Writer.write = hang  # type: ignore[method-assign]
    model = nn.Linear(1, 1)
    checkpoint = CheckpointConfig(directory=Path(directory), every_steps=1)
    state = State(StateConfig(checkpoint=checkpoint, collective_timeout_seconds=250), model=model)
    ended = "well"
    try:
        for step in state.steps(1000):
            store = state._saves.store
            assert store is not None
            if step == 2 and state.group.rank == 1:
                store._pending_since -= 10_000
    except (CheckpointError, RuntimeError) as e:
        ended = type(e).__name__
    Path(f"{out}-{os.environ['RANK']}").write_text(ended)


def averaged(directory: str, out: str) -> None:
    """Exports the averages of models with tied weights and with buffers, by two strategies.

    Rank 0 writes keys that don't fit.
    """
    trainer = Trainer(config(None))
    results = {}
    for name, strategy in (("ddp", DdpConfig()), ("fsdp", FsdpConfig())):
        for build in (tiny_gpt, Normalized):
            tied = build is tiny_gpt
            folder = Path(directory, f"{name} {build.__name__}")
            trainer.config = config(folder, strategy=strategy, ema_decay=0.5, steps=2)
            trainer.fit(build(), tokens() if tied else samples(), loss=gpt.loss if tied else loss)  # type: ignore[operator]
            if trainer.group.rank == 0:
                export(folder, folder / "ema.pt", part="ema")
                export(folder, folder / "model.pt")
                ema, model = torch.load(folder / "ema.pt"), torch.load(folder / "model.pt")
                wrong = build().load_state_dict(ema, strict=False)  # type: ignore[operator]
                other = [k for k in ema if ema[k].is_floating_point() and not torch.equal(ema[k], model[k])]
                results[folder.name] = {"wrong": [*wrong.missing_keys, *wrong.unexpected_keys], "other": other}
    if trainer.group.rank == 0:
        Path(out).write_text(json.dumps(results))
    trainer.close()
