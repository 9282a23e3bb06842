"""`python3 -m dtj_agent.build OUT.pyz`: the agent as one file, the same bytes for the same sources."""

from __future__ import annotations

import os
import sys
import zipfile

EPOCH = (1980, 1, 1, 0, 0, 0)  # the zip format knows nothing earlier
MAIN = "from dtj_agent.main import main\n\nmain()\n"


def build(target: str) -> None:
    """Write the zipapp; the folder of `target` must exist."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sources = sorted(name for name in os.listdir(folder) if name.endswith(".py") and name not in ("build.py", "__main__.py"))
    aside = target + ".new"
    with open(aside, "wb") as file:
        file.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            _add(archive, "__main__.py", MAIN.encode())
            for name in sources:
                with open(os.path.join(folder, name), "rb") as source:
                    _add(archive, "dtj_agent/" + name, source.read())
    os.chmod(aside, 0o755)
    os.replace(aside, target)


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, data)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python3 -m dtj_agent.build OUT.pyz")
    build(sys.argv[1])
