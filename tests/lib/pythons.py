"""The Python versions of this machine, because a user's image may have any from 3.9 on."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def interpreter(version: str) -> str | None:
    """Returns the interpreter of a version such as 3.9, or None if this machine has none."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    candidates = [shutil.which(f"python{version}")]
    candidates += sorted(
        map(str, Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python3"))
    )
    for candidate in candidates:
        if candidate and "shims" not in candidate:
            return candidate
    return None
