"""`make venv` compiles its libraries once, so that no process compiles torch again when it starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

LIBRARIES = Path(sysconfig.get_path("purelib"))
# The import system calls source_to_code for a module without valid bytecode.
PROGRAM = """
import importlib.machinery, json, sys
compiled, whole = [], importlib.machinery.SourceFileLoader.source_to_code
def watched(self, data, path, **options):
    compiled.append(str(path))
    return whole(self, data, path, **options)
importlib.machinery.SourceFileLoader.source_to_code = watched
for name in sys.argv[1:]:
    __import__(name)
print(json.dumps(compiled))
"""


def test_libraries_have_bytecode() -> None:
    for package in ("torch", "torch/distributed", "numpy", "kubernetes/client"):
        assert list((LIBRARIES / package / "__pycache__").glob(f"*.{sys.implementation.cache_tag}.pyc")), package


@pytest.mark.torch
def test_importing_torch_compiles_nothing() -> None:
    command = [sys.executable, "-c", PROGRAM, "torch", "torch.distributed", "numpy", "yaml", "pydantic"]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, env=environment, check=True)
    compiled = [path for path in json.loads(done.stdout) if Path(path).is_relative_to(LIBRARIES)]
    assert compiled == [], "run make venv, which compiles them"
