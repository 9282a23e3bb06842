"""Writes the model of one checkpoint as one file, and prints what the file has."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from dtj_trainer.checkpoint.export import write_safetensors
from dtj_trainer.errors import ConfigError
from dtj_trainer.export import program
from dtj_trainer.export.source import find_source


def export(source: Path, out: Path, *, suffix: str, factory: str | None, dtype: str | None, part: str) -> int:
    """Exports, and returns the exit code.

    Args:
        source: A checkpoint, or a job's folder for its newest complete one.
        out: The file. An existing file is replaced once the new one is complete.
        suffix: The format: `.safetensors` or `.pt2`.
        factory: Builds the model, as `module:function`. A torch program needs one.
        dtype: Of the floating-point tensors; None: as saved.
        part: What of the checkpoint.
    """
    if out.suffix != suffix:
        raise ConfigError(f"-o {out}: end the name in {suffix}")
    if not out.parent.is_dir():
        raise ConfigError(f"-o {out}: there is no folder {out.parent}")
    if suffix == ".pt2" and factory is None:
        raise ConfigError("--format torch-export: write --model module:function too, which builds the model")
    made = program.build(factory) if factory else None  # before a large checkpoint is read
    found = find_source(source, part)
    state = {name: _cast(found.weights.read(name), dtype) for name in sorted(found.weights.shapes)}
    if made is not None:
        program.load(made, state, str(found), dtype)
    try:
        if suffix == ".pt2" and made is not None:
            difference = program.save(made, out, found.metadata, dtype)
            checked = f"; loaded again, its outputs differ by {difference:g} at most"
        else:
            write_safetensors(state, out, found.metadata)
            checked = ""
    except OSError as e:
        raise ConfigError(f"-o {out}: {e.strerror or e}") from e
    values = sum(tensor.numel() for tensor in state.values())
    size = out.stat().st_size / 1e6
    sys.stdout.write(f"{found}: {len(state)} tensors, {values:,} values, {size:,.1f} MB in {out}{checked}\n")
    return 0


def _cast(tensor: torch.Tensor, dtype: str | None) -> torch.Tensor:
    return tensor.to(getattr(torch, dtype)) if dtype and tensor.is_floating_point() else tensor
