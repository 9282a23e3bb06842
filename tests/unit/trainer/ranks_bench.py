"""The ranks of test_bench_trial: every arm that can run here, one after the other in one group."""

from __future__ import annotations

import json
import os
from pathlib import Path

from dtj_trainer import Trainer, TrainerConfig
from dtj_trainer.measure.bench import arms
from dtj_trainer.measure.bench.trial import run_trial
from dtj_trainer.measure.bench.workloads import mlp

ARMS = ["ddp", "fsdp", "ddp_scratch", *(name for name in arms.OTHERS if arms.installed(name))]


def short_trials(out: str) -> None:
    with Trainer(TrainerConfig(steps=1)):  # the trials train in its group
        found = [run_trial(arm, mlp(64, steps=6, warmup=4, batch=8)) for arm in ARMS]
    if os.environ["RANK"] == "0":
        Path(out).write_text(json.dumps(found))
    else:
        assert found == [None] * len(ARMS)
