"""`python3 -m dtj_agent.build OUT.pyz`: the agent as one file, the same bytes for the same sources and Python.

Each module is there as source and as bytecode of the Python that builds. Without the bytecode, each start would compile
the sources: 0.2 of 0.3 s of CPU. Other versions of Python skip it, and compile the source (zipimport does both).
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import sys
import zipfile
from typing import List, Tuple

import dtj_agent
import dtj_contract

EPOCH = (1980, 1, 1, 0, 0, 0)  # the zip format's earliest date
LEFT_OUT = ("dtj_agent/build.py", "dtj_agent/__main__.py")
UNCHECKED = (1).to_bytes(4, "little")
"""The flags of bytecode that goes by a hash of its source, which is not compared (PEP 552)."""
MAIN = "from dtj_agent.main import main\n\nmain()\n"


def build(target: str) -> None:
    """Writes the zipapp, with the contract in it; the folder of `target` must exist."""
    aside = target + ".new"
    with open(aside, "wb") as file:
        file.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            _add_module(archive, "__main__.py", MAIN.encode())
            for package in (dtj_agent, dtj_contract):
                for path, name in _sources(package.__path__[0], package.__name__):
                    with open(path, "rb") as source:
                        _add_module(archive, name, source.read())
    os.chmod(aside, 0o755)
    os.replace(aside, target)


def _sources(folder: str, package: str) -> List[Tuple[str, str]]:
    """Returns (path, name in the archive) of each source file of a package, in one order everywhere."""
    found = []
    for parent, _, files in os.walk(folder):
        below = os.path.relpath(parent, folder)
        for file in files:
            name = os.path.normpath(os.path.join(package, below, file)).replace(os.sep, "/")
            if file.endswith(".py") and name not in LEFT_OUT:
                found.append((os.path.join(parent, file), name))
    return sorted(found, key=lambda item: item[1])


def _add_module(archive: zipfile.ZipFile, name: str, source: bytes) -> None:
    _add(archive, name, source)
    code = compile(source, "agent.pyz/" + name, "exec", dont_inherit=True, optimize=0)
    # Later versions of marshal write references where objects happen to be shared, which is not the same each time.
    _add(archive, name + "c", importlib.util.MAGIC_NUMBER + UNCHECKED + bytes(8) + marshal.dumps(code, 2))


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, data)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python3 -m dtj_agent.build OUT.pyz")
    build(sys.argv[1])
