"""`python -m dtj_trainer.export`, which `dtj export` starts: a checkpoint's model as safetensors or a torch program."""

from __future__ import annotations

import argparse
from pathlib import Path

SAFETENSORS, PROGRAM = "safetensors", "torch-export"
SUFFIXES = {SAFETENSORS: ".safetensors", PROGRAM: ".pt2"}
DTYPES = ("float32", "bfloat16", "float16")


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    p = argparse.ArgumentParser(
        prog="python -m dtj_trainer.export", description="Write the model of a checkpoint as one file."
    )
    p.add_argument("source", type=Path, metavar="FOLDER", help="a job's folder, for its newest checkpoint, or one step")
    p.add_argument("-o", "--out", type=Path, required=True, metavar="FILE", help="model.safetensors or model.pt2")
    p.add_argument("--format", choices=list(SUFFIXES), help="[by the end of FILE]")
    p.add_argument("--model", metavar="MODULE:FACTORY", help="builds the model that the weights must fit")
    p.add_argument("--dtype", choices=DTYPES, help="of the floating-point tensors [as saved]")
    p.add_argument("--part", default="model", help="what of the checkpoint: model, ema, …; '' for all [%(default)s]")
    return p
