"""Functions for the ranks of test_init_from."""

from __future__ import annotations

import json
from pathlib import Path

from dtj_trainer.checkpoint.config import CheckpointConfig
from dtj_trainer.checkpoint.export import export
from dtj_trainer.components.optimizer import OptimizerConfig
from dtj_trainer.config import TrainerConfig
from dtj_trainer.examples import gpt
from dtj_trainer.state import StateConfig
from dtj_trainer.strategies import DdpConfig, FsdpConfig
from dtj_trainer.trainer import Trainer
from tests.unit.trainer.ranks_shared import Keep, tiny_gpt, tokens


def begin(folder: str) -> None:
    """Trains, exports, and begins other runs with the weights. Rank 0 writes the losses of their first steps."""
    trainer, job = Trainer(TrainerConfig(steps=1)), Path(folder) / "job"

    def losses(steps: int, **changes: object) -> list[float]:
        kept: list[float] = []
        changes.setdefault("state", StateConfig(log_every_steps=1))
        trainer.config = TrainerConfig(
            steps=steps, global_batch_size=12, optimizer=OptimizerConfig(lr=1e-2),
            **changes,  # type: ignore[arg-type]
        )  # fmt: skip
        trainer.fit(tiny_gpt(), tokens(), loss=gpt.loss, sinks=[Keep(kept)])
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
    results["resumed"] = losses(6, state=saved, init_from=exported)
    if trainer.group.rank == 0:
        (Path(folder) / "out.json").write_text(json.dumps(results))
    trainer.close()
