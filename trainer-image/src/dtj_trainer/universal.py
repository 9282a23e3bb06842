"""Two calls for a loop with DeepSpeed: save, and resume at any number of ranks.

    from dtj_trainer import universal

    start = universal.load(engine)                     # the newest complete checkpoint; 0 without one
    for step in range(start + 1, steps + 1):
        ...                                            # engine(batch), engine.backward(loss), engine.step()
        universal.save(engine, step, last=step == steps)

A checkpoint is what `engine.save_checkpoint` writes. ZeRO's files are of one number of ranks, so ranks of
another number convert them to DeepSpeed's universal checkpoint first, by DeepSpeed's own program.
The file and rank.py may be copied beside a script whose image lacks this package.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def _import_rank() -> Any:
    try:
        return importlib.import_module("dtj_trainer.rank")
    except ImportError:  # both files were copied
        return importlib.import_module("rank")


rank = _import_rank()
TAG = "deepspeed"
"""The name of the engine's files within a checkpoint."""
CONVERT_SECONDS = 1800
"""Deadline of a conversion: as long as the other ranks wait for it by default, the timeout of a process group."""
_SHARD = re.compile(r"zero_pp_rank_(\d+)_mp_rank_\d+_optim_states\.pt$")


def load(engine: Any) -> int:
    """Loads the newest complete checkpoint of the job into a new engine. Returns its step, 0 without one.

    A collective, before the first step.
    """
    found = _from_first(engine, rank.newest)
    if found is None:
        return 0
    step, folder = found
    read(engine, folder)
    return int(step)


def save(engine: Any, step: int, last: bool = False) -> None:
    """Saves after a step where that is due: at the job's interval, at the `last`, and when any rank got a SIGTERM.

    All ranks then exit with 143. Call `save` on all ranks after every step: they agree on a SIGTERM by an
    all-reduce of one number.
    """
    asked = torch.tensor(float(rank.stop_asked()), device=engine.device)
    dist.all_reduce(asked, op=dist.ReduceOp.MAX)
    stopping = bool(asked)
    if stopping or last or rank.due(step):
        folder = _from_first(engine, lambda: rank.begin(step))
        if folder is not None:
            write(engine, folder)
            if engine.global_rank == 0:
                rank.complete(step, folder)
    if stopping:
        dist.barrier()  # until rank 0 has completed the checkpoint
        sys.exit(rank.TERMINATED)


def write(engine: Any, folder: Path) -> None:
    """Writes the engine's files into a folder that all ranks see; a collective."""
    engine.save_checkpoint(str(folder), tag=TAG)


def read(engine: Any, folder: Path) -> None:
    """Loads what `write` wrote on any number of ranks; a collective.

    Raises RuntimeError where the files can't be converted or loaded.
    """
    saved = shards(folder)
    if saved in (0, engine.seq_dp_world_size):
        _load(engine, folder)
        return
    converted = folder.with_name(f".universal-{folder.name}-a{os.environ.get('DTJ_ATTEMPT') or 1}")
    problem = _from_first(engine, lambda: convert(folder, converted))
    if problem:
        raise RuntimeError(f"{folder} of {saved} ranks can't be converted for {engine.seq_dp_world_size}: {problem}")
    # Its checkpoint.load_universal is the same, for engines that are made after the look at the folder.
    engine.load_universal_checkpoint = lambda: True
    try:
        _load(engine, converted)
    finally:
        del engine.load_universal_checkpoint
    dist.barrier()
    if engine.global_rank == 0:
        shutil.rmtree(converted)


def shards(folder: Path) -> int:
    """Returns the number of ranks that ZeRO's files in a checkpoint are of; 0 if there are none (stage 0)."""
    names = (_SHARD.search(path.name) for path in (folder / TAG).glob("*_optim_states.pt"))
    return len({match[1] for match in names if match})


def convert(folder: Path, converted: Path) -> str:
    """Writes a checkpoint as a universal one, in one process. Returns what is wrong; "" if nothing is."""
    shutil.rmtree(converted, ignore_errors=True)
    converted.mkdir()
    program = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
    paths = ["--input_folder", str(folder / TAG), "--output_folder", str(converted / TAG)]
    try:
        done = subprocess.run([*program, *paths], capture_output=True, text=True, timeout=CONVERT_SECONDS)
    except subprocess.TimeoutExpired:
        return f"ds_to_universal has not ended within {CONVERT_SECONDS} s"
    return "" if done.returncode == 0 else "\n".join((done.stdout + done.stderr).splitlines()[-10:])


def _load(engine: Any, folder: Path) -> None:
    path, _ = engine.load_checkpoint(str(folder), tag=TAG)
    if path is None:
        raise RuntimeError(f"{folder} has no checkpoint of DeepSpeed")


def _from_first(engine: Any, look: Any) -> Any:
    """Returns what `look` returns on rank 0; a collective."""
    found = [look() if engine.global_rank == 0 else None]
    dist.broadcast_object_list(found, src=0)
    return found[0]
