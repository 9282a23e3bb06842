"""A Go new enough for Kubernetes: the one on PATH, else the toolchain that the Go module proxy serves as a module."""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import re
import shutil
import urllib.error
import urllib.request
import zipfile
from functools import cache as memoize
from pathlib import Path

from hack.cluster import cache
from hack.cluster.shell import ClusterError, output, run
from hack.cluster.versions import GO_MINIMUM, GO_TOOLCHAIN

# The `h1:` of golang.org/toolchain@v0.0.1-goX.linux-ARCH, as the checksum database has it.
CHECKSUMS = {
    "1.26.8-amd64": "h1:ZOmGe1OnfREDMIdb1Qi4G9JSuDPBLGExZMQ4nis1RXM=",
    "1.26.8-arm64": "h1:sYL/O6MqS68ML0kjsQ36WoYIpJqkw60TxizWUYUKQMc=",
}


@memoize
def go() -> str:
    """The go command to use; fetched once into the cache where the machine has none that will do."""
    found = shutil.which("go")
    if found:
        version = output([found, "env", "GOVERSION"], timeout=60)
        numbers = re.match(r"go(\d+)\.(\d+)", version)
        if numbers and tuple(map(int, numbers.groups())) >= GO_MINIMUM:
            return found
    if platform.system() != "Linux":
        wanted = ".".join(map(str, GO_MINIMUM))
        raise ClusterError(f"needs go >= {wanted} on PATH (found: {found or 'none'})")
    arch = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    name = f"{GO_TOOLCHAIN}-{arch}"
    if name not in CHECKSUMS:
        raise ClusterError(f"no Go {GO_TOOLCHAIN} for {platform.machine()} is pinned; install go and try again")
    return str(cache.entry("toolchain", f"go{name}", lambda folder: _fetch(name, folder)) / "go/bin/go")


def _fetch(name: str, folder: Path) -> None:
    version, arch = name.split("-")
    prefix = f"golang.org/toolchain@v0.0.1-go{version}.linux-{arch}"
    archive = folder / "toolchain.zip"
    _download(f"golang.org/toolchain/@v/v0.0.1-go{version}.linux-{arch}.zip", archive)
    with zipfile.ZipFile(archive) as opened:
        if (got := module_hash(opened)) != CHECKSUMS[name]:
            raise ClusterError(f"Go toolchain {name}: checksum {got}, expected {CHECKSUMS[name]}")
        opened.extractall(folder)
    archive.unlink()
    (folder / prefix).rename(folder / "go")
    # A module's zip has no file modes.
    for program in [*(folder / "go/bin").iterdir(), *(folder / "go/pkg/tool").rglob("*")]:
        if program.is_file():
            program.chmod(0o755)
    run([folder / "go/bin/go", "version"], timeout=60)


def _download(path: str, target: Path) -> None:
    """From the environment's GOPROXY, in its order; `direct` and `off` can't serve a toolchain."""
    configured = os.environ.get("GOPROXY") or "https://proxy.golang.org"
    tried = []
    for proxy in re.split(r"[,|]", configured):
        if not proxy.startswith("http"):
            continue
        try:
            with urllib.request.urlopen(f"{proxy.rstrip('/')}/{path}", timeout=60) as answer, target.open("wb") as file:
                shutil.copyfileobj(answer, file)
            return
        except (urllib.error.URLError, OSError) as error:
            tried.append(str(error))
    raise ClusterError(f"no go on PATH, and none from the Go module proxy: {'; '.join(tried) or configured}")


def module_hash(archive: zipfile.ZipFile) -> str:
    """Go's `h1:` directory hash: SHA-256 over the sorted lines `<sha256 of the file>  <name>`."""
    lines = []
    for name in sorted(archive.namelist()):
        lines.append(f"{hashlib.sha256(archive.read(name)).hexdigest()}  {name}\n")
    return "h1:" + base64.b64encode(hashlib.sha256("".join(lines).encode()).digest()).decode()
