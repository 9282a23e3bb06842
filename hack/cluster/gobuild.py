"""Go programs from the module proxy, one cache entry each, and one folder of links to put on PATH.

`go install module@version` refuses modules with `replace` lines (Kubernetes, etcd), so each program is built from a
go.mod of our own that requires its module. Checksums are the Go checksum database's; the environment's GOPROXY,
GOFLAGS and caches are used as they are.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

from hack.cluster import cache, toolchain
from hack.cluster.shell import ClusterError, log, run
from hack.cluster.versions import TOOLS, Tool

# Raised when what is written below changes what comes out.
RECIPE = 1
# kube-apiserver takes 200 s on two idle cores; a machine shared with other work takes several times that.
BUILD_TIMEOUT = 3000


def binary(name: str) -> Path:
    """The program's path in the cache, built if it isn't there."""
    tool = TOOLS.get(name)
    if tool is None:
        raise ClusterError(f"unknown program {name}; known: {', '.join(TOOLS)}")
    folder = cache.entry("go", f"{name}-{tool.version}-{_key(tool)}", lambda aside: _build(tool, aside))
    return folder / name


def bin_folder(names: Iterable[str]) -> Path:
    """<cache>/bin/<key of all pins>, holding a link to each of these programs (and to whatever was built before)."""
    folder = cache.root() / "bin" / cache.key([_key(tool) for tool in TOOLS.values()])
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        link = folder / name
        # Linked as soon as it is built: whoever waits for the first program doesn't wait for the last.
        program = binary(name)
        if not link.exists():
            with contextlib.suppress(FileExistsError):
                link.unlink(missing_ok=True)
                link.symlink_to(os.path.relpath(program, folder))
    return folder


def _key(tool: Tool) -> str:
    recipe = [tool.module, tool.version, tool.package, tool.tags, tool.stamps, tool.main, tool.staging]
    return cache.key(RECIPE, platform.system(), platform.machine(), recipe)


def _build(tool: Tool, folder: Path) -> None:
    log(f"building {tool.name} {tool.version} (once; kept in {cache.root()})")
    go = toolchain.go()
    source = folder / "source"
    source.mkdir()
    theirs = Path(download(tool)["GoMod"]).read_text() if tool.module else ""
    (source / "go.mod").write_text(go_mod(tool, theirs))
    if tool.main:
        (source / "main.go").write_text(tool.main)
    stamps = " ".join(["-s", "-w", *(f"-X {variable}={value}" for variable, value in tool.stamps)])
    options = ["-mod=mod", "-trimpath", f"-tags={','.join(tool.tags)}", f"-ldflags={stamps}"]
    run(
        [go, "build", *options, "-o", folder / tool.name, tool.package],
        timeout=BUILD_TIMEOUT,
        cwd=source,
        # Static: the same file runs here and in an image made from scratch.
        env={"CGO_ENABLED": "0", "GOWORK": "off"},
    )


def download(tool: Tool) -> dict[str, str]:
    """The tool's module in Go's own module cache: `Dir` is its source, `GoMod` its go.mod."""
    named = f"{tool.module}@{tool.version}"
    with tempfile.TemporaryDirectory() as nowhere:
        done = run([toolchain.go(), "mod", "download", "-json", named], timeout=900, cwd=Path(nowhere))
    return dict(json.loads(done.stdout))


def go_mod(tool: Tool, theirs: str) -> str:
    """A go.mod that requires the tool's module, given the go.mod of that module."""
    version = re.search(r"^go (\S+)$", theirs, re.MULTILINE)
    lines = [f"module dtj.local/{tool.name}", f"go {version.group(1) if version else '1.24'}"]
    if tool.module:
        lines.append(f"require {tool.module} {tool.version}")
    if tool.staging:
        staged = sorted(set(re.findall(r"^\s+(k8s\.io/\S+) v0\.0\.0$", theirs, re.MULTILINE)))
        lines += [f"replace {name} => {name} {tool.staging}" for name in staged]
    return "\n".join(lines) + "\n"
