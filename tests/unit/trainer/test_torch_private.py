"""Each use of torch's private API: a failure here names what a new version of torch changed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed._checkpointable import _Checkpointable
from torch.distributed.checkpoint import FileSystemWriter
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

import dtj_trainer
from dtj_trainer import torch_private
from dtj_trainer.checkpoint.files import HashedFiles
from dtj_trainer.components import activation_checkpoint
from dtj_trainer.distributed.flat_shard import FlatShard

PACKAGE = Path(dtj_trainer.__file__).parent
PRIVATE = re.compile(
    r"\b(?:torch|dist|distributed_c10d)(?:\.\w+)*\._(?!_)\w+(?:\.\w+)*"
    r"|from torch[\w.]*\._\w[\w.]* import"
    r"|from torch\S* import .*\b_\w+"
)


def test_private_torch_is_used_in_one_file_only() -> None:
    found = {
        f"{path.name}: {use}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "torch_private.py"
        for use in PRIVATE.findall(path.read_text())
    }
    assert found == {"flat_shard.py: torch.distributed._checkpointable._Checkpointable"}, (
        "a comment: FlatShard has the methods that this protocol names"
    )


@pytest.mark.parametrize("name", ["_set_ddp_runtime_logging_sample_rate", "_get_ddp_logging_data"])
def test_torch_ddp_has_the_private_method(name: str) -> None:
    assert callable(getattr(DistributedDataParallel, name))


@pytest.mark.parametrize("name", ["default_pg", "group_count", "pg_map"])
def test_torch_world_of_groups_has_the_private_field(name: str) -> None:
    assert hasattr(distributed_c10d._world, name)
    assert callable(distributed_c10d._update_default_pg)


def test_torch_has_a_world_of_groups_for_each_thread() -> None:
    from torch.testing._internal.distributed.multi_threaded_pg import ThreadLocalWorld

    assert ThreadLocalWorld().default_pg is None
    assert callable(torch._C._distributed_c10d._set_thread_isolation_mode)


@pytest.mark.parametrize("name", ["__create_write_items__", "__create_chunk_list__"])
def test_torch_checkpoints_ask_a_tensor_by_the_methods_that_part_has(name: str) -> None:
    assert hasattr(_Checkpointable, name)
    assert hasattr(FlatShard, name)


@pytest.mark.parametrize("name", ["DefaultAllGather", "DefaultReduceScatter"])
def test_fully_shard_collectives_can_be_subclassed(name: str) -> None:
    assert {"allocate", "__call__"} <= set(dir(getattr(torch_private, name)))


def test_fake_backend_of_torch_is_registered_by_its_import() -> None:
    import torch.testing._internal.distributed.fake_pg  # noqa: F401

    assert hasattr(dist.Backend, "FAKE")


def test_compiler_has_the_private_options() -> None:
    import torch._dynamo

    # monkeypatch would delete an option when it ends, and a deleted option is missing in every later test.
    with torch._dynamo.config.patch(optimize_ddp=True, recompile_limit=8):
        torch_private.set_compiler(cut_at_buckets=False, graphs=1000)
        assert torch._dynamo.config.optimize_ddp is False
        assert torch._dynamo.config.recompile_limit >= 1000


def test_step_without_hooks_updates_and_no_global_hook_hears_of_it() -> None:
    weight, heard = torch.nn.Parameter(torch.ones(2)), list[Any]()
    optimizer = torch.optim.SGD([weight], lr=0.5)
    weight.grad = torch.ones(2)
    handle = register_optimizer_step_post_hook(lambda *_: heard.append(weight.tolist()))
    try:
        torch_private.step_without_hooks(optimizer)
        assert (weight.tolist(), heard) == ([0.5, 0.5], [])
        optimizer.step()
        assert heard == [[0.0, 0.0]], "the hook hears of an ordinary step"
    finally:
        handle.remove()


def test_checkpoint_writer_takes_our_files(tmp_path: Path) -> None:
    writer, files = FileSystemWriter(tmp_path), HashedFiles()
    torch_private.write_through(writer, files)
    assert writer.fs is files


def test_in_backward_outside_of_a_backward_is_false() -> None:
    assert not torch_private.in_backward()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_unscale_divides_every_gradient_and_finds_nonfinite_ones(dtype: torch.dtype) -> None:
    gradients = [torch.full((3,), 8.0, dtype=dtype), torch.ones(2), torch.ones(0)]
    found = torch_private.unscale(gradients, 4.0, torch.device("cpu"))
    assert found.item() == 0
    assert gradients[0].tolist() == [2.0] * 3
    assert gradients[1].tolist() == [0.25] * 2
    assert torch_private.unscale([*gradients, torch.tensor([1.0, float("nan")])], 4.0, torch.device("cpu")).item() == 1
    assert torch_private.unscale([], 4.0, torch.device("cpu")).item() == 0


@pytest.mark.parametrize("name", ["flash_attention", "efficient_attention", "flash_attention_for_cpu"])
def test_attention_that_selective_recompute_keeps_has_the_name_of_an_operator(name: str) -> None:
    operator = getattr(torch.ops.aten, f"_scaled_dot_product_{name}").default
    assert operator in activation_checkpoint._EXPENSIVE
