"""Installs a distribution from its source tree into an image: `install_tree.py PROJECT LIBRARY SCRIPTS`.

Does what an installer does with our wheels (packages, name and version for importlib.metadata, commands), without a
build back end in the image and without the seconds that one takes. Compiles the packages once, because every process
under a read-only root would compile them again.
"""

from __future__ import annotations

import compileall
import os
import py_compile
import shutil
import sys
import tomllib
from pathlib import Path

COMMAND = """#!/usr/bin/env python3
import sys

from {module} import {function}

sys.exit({function}())
"""


def main(source: str, library: str, scripts: str) -> None:
    project = tomllib.loads(Path(source, "pyproject.toml").read_text())["project"]
    target = Path(library)
    # Bytecode is valid by content and never checked again, so no time stamp in the image matters.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    for package in [path.name for path in Path(source, "src").iterdir() if path.is_dir()]:
        shutil.copytree(Path(source, "src", package), target / package)
        if not compileall.compile_dir(target / package, quiet=1, invalidation_mode=mode):
            raise SystemExit(f"{source} does not compile with Python {sys.version.split()[0]}")
    name = project["name"].replace("-", "_")
    information = target / f"{name}-{project['version']}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    (information / "INSTALLER").write_text("dtj\n")
    for command, place in project.get("scripts", {}).items():
        module, function = place.split(":")
        Path(scripts).mkdir(parents=True, exist_ok=True)
        Path(scripts, command).write_text(COMMAND.format(module=module, function=function))
    # The modes must not depend on the umask of the checkout.
    for folder in filter(Path.exists, (Path(library), Path(scripts))):
        for path in [folder, *folder.rglob("*")]:
            os.chmod(path, 0o755 if path.is_dir() or folder == Path(scripts) else 0o644)


if __name__ == "__main__":
    main(*sys.argv[1:])
