"""Runs `python -m dtj_trainer.export FOLDER -o model.safetensors`. `dtj export` starts it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

from dtj_trainer.export import PROGRAM, SAFETENSORS, SUFFIXES, parser

NEEDED = ("torch", "numpy", "safetensors")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line. Exit codes: 0 done, 93 a wrong flag or checkpoint, else an error."""
    flags = parser().parse_args(argv)
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        sys.stderr.write(
            f"ModuleNotFoundError: {', '.join(absent)} not installed for {sys.executable}: install dtj-trainer[torch]\n"
        )
        return 1
    # Imported here, because these modules import torch.
    from dtj_trainer.cli import guarded
    from dtj_trainer.export.run import export

    wanted = flags.format or (PROGRAM if flags.out.suffix == SUFFIXES[PROGRAM] else SAFETENSORS)
    return guarded(
        lambda: export(
            flags.source,
            flags.out,
            suffix=SUFFIXES[wanted],
            factory=flags.model,
            dtype=flags.dtype,
            part=flags.part,
        )
    )


if __name__ == "__main__":
    raise SystemExit(main())
