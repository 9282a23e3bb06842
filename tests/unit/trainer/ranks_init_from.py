"""Functions for the ranks of test_init_from."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.checkpoint.export import export
from dtj_trainer.checkpoint.folder import committed
from dtj_trainer.checkpoint.weights import load_weights
from dtj_trainer.components.optimizer import OptimizerConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.errors import CheckpointInvalid, ConfigError
from dtj_trainer.examples import gpt
from dtj_trainer.state import StateConfig
from dtj_trainer.strategies import DdpConfig, FsdpConfig
from dtj_trainer.strategies.fsdp import Fsdp as FsdpWrap
from dtj_trainer.trainer import Trainer
from tests.unit.trainer.ranks_shared import Keep, tiny_gpt, tokens


def bytes_from_meta(folder: str) -> None:
    """Spreads a model that is on the meta device everywhere. Rank 0 writes the bytes that it held as each was read."""
    group, path = Group.open(WorkerEnv.read()), Path(folder) / "model.safetensors"
    if group.rank == 0:
        save_file(dict(tiny_gpt().named_parameters()), path)  # a tied weight by one name
    group.from_first(None)
    with torch.device("meta"):
        model = tiny_gpt()
    fill, held = load_weights(model, path), []
    assert fill is not None

    def noted(tensor: torch.Tensor, made: torch.Tensor) -> None:
        fill(tensor, made)
        local = [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]
        held.append(sum(p.nbytes for p in local if not p.is_meta))

    FsdpWrap(FsdpConfig(), fill=noted).wrap(model, group)
    same = tiny_gpt().state_dict()
    differ = [name for name, p in model.state_dict().items() if not torch.equal(p.full_tensor(), same[name])]
    if group.rank == 0:
        found = {"held": held, "whole": sum(t.nbytes for t in tiny_gpt().parameters()), "differ": differ}
        (Path(folder) / "out.json").write_text(json.dumps(found))
    group.close()


def resume(folder: str) -> None:
    """Continues a run in another folder. Rank 0 writes each run's losses, or why its path can't be used."""
    trainer, root = Trainer(TrainerConfig(steps=1)), Path(folder)

    def losses(steps: int, own: str | None, resume_from: str | None = None) -> list[float] | str:
        kept: list[float] = []
        checkpoint = CheckpointConfig(
            directory=root / own if own else None,
            every_steps=2,
            asynchronous=False,
            resume_from=root / resume_from if resume_from else None,
        )
        trainer.config = TrainerConfig(
            steps=steps, global_batch_size=12, optimizer=OptimizerConfig(lr=1e-2),
            state=StateConfig(log_every_steps=1, checkpoint=checkpoint),
        )  # fmt: skip
        try:
            trainer.fit(tiny_gpt(), tokens(), loss=gpt.loss, sinks=[Keep(kept)])
        except (ConfigError, CheckpointInvalid) as error:
            return str(error)
        return kept

    results = {"whole": losses(7, "a"), "step 4": losses(7, "b", "a/step-00000004"), "newest": losses(8, "c", "a")}
    results["again"] = losses(8, "b", "a/step-00000004")
    results["at its end"] = losses(4, "d", "a/step-00000004")
    results["saved at its end"] = [float(path.name[-1:]) for path in committed(root / "d")]
    results["nowhere"], results["own"] = losses(8, "e", "nowhere"), losses(8, "b", "b/step-00000006")
    results["no folder"] = losses(8, None, "a")
    if trainer.group.rank == 0:
        (root / "a/step-00000006/shared.pt").write_bytes(b"torn")
    trainer.group.from_first(None)
    results["torn"] = losses(8, "f", "a/step-00000006")
    if trainer.group.rank == 0:
        results["left"] = [float(path.name[-1:]) for path in committed(root / "a")]
        (root / "out.json").write_text(json.dumps(results))
    trainer.close()


def begin(folder: str) -> None:
    """Trains, exports, and begins other runs with the weights. Rank 0 writes the losses of their first steps."""
    trainer, job = Trainer(TrainerConfig(steps=1)), Path(folder) / "job"

    def losses(steps: int, device: str = "cpu", **changes: object) -> list[float]:
        kept: list[float] = []
        changes.setdefault("state", StateConfig(log_every_steps=1))
        trainer.config = TrainerConfig(
            steps=steps, global_batch_size=12, optimizer=OptimizerConfig(lr=1e-2),
            **changes,  # type: ignore[arg-type]
        )  # fmt: skip
        with torch.device(device):
            model = tiny_gpt()
        trainer.fit(model, tokens(), loss=gpt.loss, sinks=[Keep(kept)])
        return kept

    saved = StateConfig(log_every_steps=1, checkpoint=CheckpointConfig(directory=job))
    results = {"trained": losses(4, state=saved)}
    exported = Path(folder) / "model.safetensors"
    if trainer.group.rank == 0:
        export(job, exported)
        (job / "old.safetensors").write_bytes(b"an export that is none")
    trainer.group.from_first(None)
    results["fresh"] = losses(1)
    for name, strategy in (("ddp", DdpConfig()), ("fsdp", FsdpConfig())):
        results[f"{name} checkpoint"] = losses(1, init_from=job, strategy=strategy)
        results[f"{name} file"] = losses(1, init_from=exported, strategy=strategy)
    on_meta = {"device": "meta", "strategy": FsdpConfig()}
    results["meta checkpoint"] = losses(1, init_from=job, **on_meta)  # type: ignore[arg-type]
    results["meta file"] = losses(1, init_from=exported, **on_meta)  # type: ignore[arg-type]
    results["meta auto"] = losses(1, init_from=exported, micro_batch_size="auto", **on_meta)  # type: ignore[arg-type]
    results["resumed"] = losses(6, state=saved, init_from=exported)
    if trainer.group.rank == 0:
        (Path(folder) / "out.json").write_text(json.dumps(results))
    trainer.close()
