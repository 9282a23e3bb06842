"""`python3 -m dtj_agent.build OUT.pyz`: the agent as one file, the same bytes for the same sources."""

from __future__ import annotations

import os
import sys
import zipfile
from typing import List, Tuple

import dtj_agent
import dtj_contract

EPOCH = (1980, 1, 1, 0, 0, 0)  # the zip format's earliest date
LEFT_OUT = ("dtj_agent/build.py", "dtj_agent/__main__.py")
MAIN = "from dtj_agent.main import main\n\nmain()\n"


def build(target: str) -> None:
    """Writes the zipapp, with the contract in it; the folder of `target` must exist."""
    aside = target + ".new"
    with open(aside, "wb") as file:
        file.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            _add(archive, "__main__.py", MAIN.encode())
            for package in (dtj_agent, dtj_contract):
                for path, name in _sources(package.__path__[0], package.__name__):
                    with open(path, "rb") as source:
                        _add(archive, name, source.read())
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


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, data)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python3 -m dtj_agent.build OUT.pyz")
    build(sys.argv[1])
