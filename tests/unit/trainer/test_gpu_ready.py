"""Logic that matters on GPUs, tested on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dtj_trainer.components.batch_size import out_of_memory
from dtj_trainer.components.optimizer import OptimizerConfig, make_optimizer
from dtj_trainer.distributed import process_group
from dtj_trainer.distributed.worker_env import WorkerEnv
from dtj_trainer.errors import ConfigError, OutOfMemory
from tests.unit.trainer.ranks import finished, ranks
from tests.unit.trainer.ranks_gpu_ready import clipped_norms, reduced, runs_out


@pytest.mark.torch
def test_clip_under_fp16_with_a_partial_optimizer_finds_the_norm_of_fp32(tmp_path: Path) -> None:
    finished(2, clipped_norms, tmp_path, str(tmp_path / "out.json"))
    results = json.loads((tmp_path / "out.json").read_text())
    assert len(results) == 6
    for strategy, (whole, half) in results.items():
        assert half == pytest.approx(whole, rel=0.02), strategy


def test_ranks_that_share_a_gpu_are_named_with_a_hint() -> None:
    process_group.check_one_device_each([("a", "GPU-1"), ("a", "GPU-2"), ("b", "GPU-1")])
    with pytest.raises(ConfigError, match=r"ranks 0, 2 have one GPU of a: write processesPerPod"):
        process_group.check_one_device_each([("a", "GPU-1"), ("a", "GPU-2"), ("a", "GPU-1")])


def test_flight_recorder_writes_beside_the_checkpoints_and_keeps_what_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
    monkeypatch.setattr(process_group.os, "environ", environ)
    process_group.record_flights(WorkerEnv(checkpoint_dir=tmp_path, attempt=4))
    assert environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "0"
    assert int(environ["TORCH_FR_BUFFER_SIZE"]) > 0
    assert environ["TORCH_FR_DUMP_TEMP_FILE"] == f"{tmp_path}/flight-records/attempt-4-rank-"
    assert (tmp_path / "flight-records").is_dir()


@pytest.mark.parametrize(
    ("step", "fixed", "kind"),
    [(0, True, ConfigError), (2, True, ConfigError), (3, True, OutOfMemory), (0, False, OutOfMemory)],
)
def test_out_of_memory_in_the_first_steps_asks_for_no_restart(step: int, fixed: bool, kind: type[Exception]) -> None:
    error = out_of_memory("CUDA out of memory.\nTried to allocate 2 GiB", step=step, fixed=fixed)
    assert type(error) is kind
    assert "micro_batch_size" in str(error)
    assert "Tried to allocate 2 GiB" in str(error)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("at", "code", "says"), [(1, 93, "ConfigError: step 1 runs out"), (4, 1, "OutOfMemory: step 4 ran out")]
)
def test_step_that_runs_out_of_memory_ends_with_a_hint(tmp_path: Path, at: int, code: int, says: str) -> None:
    with ranks(1, runs_out, tmp_path, at) as running:
        assert running.wait() == [code], running.everything()
        assert says in running.output()


def test_fused_optimizer_is_one_where_it_is_asked_for() -> None:
    model = torch.nn.Linear(2, 1)
    for name in ("adamw", "sgd"):
        assert make_optimizer(model, OptimizerConfig(name=name, fused=True)).param_groups[0]["fused"] is True  # type: ignore[arg-type]
        assert not make_optimizer(model, OptimizerConfig(name=name)).param_groups[0]["fused"]  # type: ignore[arg-type]


@pytest.mark.torch
def test_accumulation_that_reduces_each_micro_batch_keeps_no_whole_gradient(tmp_path: Path) -> None:
    finished(2, reduced, tmp_path, str(tmp_path / "out.json"))
    results = json.loads((tmp_path / "out.json").read_text())
    for name, (losses, whole, sends) in results.items():
        assert losses == pytest.approx(results["fsdp once"][0], abs=1e-6), name
        if name.startswith("fsdp_scratch"):
            assert whole == (0 if name.endswith("each") else 4), (
                "units with a whole gradient after a micro-batch: blocks and root"
            )
            assert sends == (3 * 4 * 2 if name.endswith("each") else 3 * 4), (
                "three steps, four units, two micro-batches"
            )
