"""One rank of a group that `link.run` starts."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path


def main(work: str, arguments: str, folder: str) -> None:
    """Calls the function; rank 0 writes its result."""
    module, _, name = work.partition(":")
    result = getattr(importlib.import_module(module), name)(*json.loads(arguments))
    if os.environ["RANK"] == "0":
        (Path(folder) / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
