"""The flags of `dtj export`."""

from __future__ import annotations

import sys

from dtj.arguments import Verb, Verbs, late


def add_export(verbs: Verbs[Verb]) -> None:
    export = verbs.add_parser(
        "export",
        description="Write the model of a checkpoint as one file: safetensors, or a program of torch.export that is "
        "loaded again and compared. The training library of this Python does it. Exit code: 0, 1 it can't be done "
        "here, 2 bad input or checkpoint.",
        help="write the model of a checkpoint as one file: safetensors or torch.export",
    )
    add = export.add_argument
    add("source", metavar="FOLDER", help="of a local run (.dtj/runs/…), of a job's checkpoints, or of one checkpoint; "
        "the newest complete one is taken")  # fmt: skip
    add("-o", "--out", required=True, metavar="FILE", help="model.safetensors, or model.pt2 for torch-export")
    add("--format", choices=["safetensors", "torch-export"], help="[by the end of FILE]")
    add("--model", metavar="MODULE:FACTORY", help="builds the model; torch-export needs it, and for safetensors it "
        "checks that the weights fit")  # fmt: skip
    add("--dtype", choices=["float32", "bfloat16", "float16"], help="of the floating-point tensors [as saved]")
    add("--part", default="model", metavar="NAME", help="of the checkpoint: model, ema; '' for all [%(default)s]")
    add("--python", default=sys.executable, metavar="PATH", help="interpreter with dtj-trainer and torch [that of dtj]")
    export.set_defaults(command=late("dtj.export.command", "command"))
