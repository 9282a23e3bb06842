"""Go programs from the module proxy, one cache entry each, and one folder of links to put on PATH.

`go install module@version` rejects modules with `replace` lines (Kubernetes, etcd), so each program is built from a
generated go.mod that requires its module. The Go checksum database verifies the sources. The environment's GOPROXY,
GOFLAGS and caches apply unchanged.
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
from hack.cluster.shell import ProvisionError, log, run
from hack.cluster.versions import PARTNERS, TOOLS, Tool

# Raise this number when a change of this file changes the programs.
RECIPE = 1
# kube-apiserver takes 200 s on two idle cores, and several times that on a busy machine.
BUILD_TIMEOUT = 3000


def binary(name: str) -> Path:
    """Returns the program's path in the cache; builds it if it is missing."""
    tool = TOOLS.get(name) or PARTNERS.get(name)
    if tool is None:
        raise ProvisionError(f"unknown program {name}; known: {', '.join(TOOLS)}")
    return program(tool)


def program(tool: Tool) -> Path:
    """Returns the path of a program that need not be one of the cluster's."""
    folder = cache.entry("go", f"{tool.name}-{tool.version}-{_key(tool)}", lambda aside: _build(tool, aside))
    return folder / tool.name


def bin_folder(names: Iterable[str]) -> Path:
    """Returns <cache>/bin/<key of all pins>, which links each of these programs and every program built before."""
    folder = cache.root() / "bin" / cache.key([_key(tool) for tool in TOOLS.values()])
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        link = folder / name
        # Link each program as soon as it is built, so that a user of the first one doesn't wait for the last.
        program = binary(name)
        if not link.exists():
            with contextlib.suppress(FileExistsError):
                link.unlink(missing_ok=True)
                link.symlink_to(os.path.relpath(program, folder))
    return folder


def _key(tool: Tool) -> str:
    recipe = [tool.module, tool.version, tool.package, tool.tags, tool.stamps, tool.main, tool.staging]
    # Only where there are any, so that the other programs keep their keys.
    recipe += [tool.requires] if tool.requires else []
    # Programs without pins keep the keys that they had before there were pins.
    recipe += [tool.pins] if tool.pins else []
    recipe += [tool.moved] if tool.moved else []
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
        # A cold `make test` builds beside the fast tests, whose deadlines must not wait for a compiler.
        ["nice", "-n", "10", go, "build", *options, "-o", folder / tool.name, tool.package],
        timeout=BUILD_TIMEOUT,
        cwd=source,
        # A static program runs here and in an image built from scratch.
        env={"CGO_ENABLED": "0", "GOWORK": "off"},
    )


def download(tool: Tool) -> dict[str, str]:
    """Downloads the tool's module into Go's module cache. Returns `Dir`, its source, and `GoMod`, its go.mod."""
    named = f"{tool.module}@{tool.version}"
    with tempfile.TemporaryDirectory() as nowhere:
        done = run([toolchain.go(), "mod", "download", "-json", named], timeout=900, cwd=Path(nowhere))
    return dict(json.loads(done.stdout))


def go_mod(tool: Tool, theirs: str) -> str:
    """Returns a go.mod that requires the tool's module, given the go.mod of that module."""
    language = re.search(r"^go (\S+)$", theirs, re.MULTILINE)
    lines = [f"module dtj.local/{tool.name}", f"go {language.group(1) if language else '1.24'}"]
    if tool.module:
        lines.append(f"require {tool.module} {tool.version}")
        lines += [f"require {name} {version}" for name, version in tool.requires]
    pinned = dict(tool.pins)
    if tool.staging:
        # Kubernetes itself requires them at v0.0.0. Who builds on it replaces them, and only the main module may.
        required = re.findall(r"^\s+(k8s\.io/\S+) v0\.0\.0$", theirs, re.MULTILINE)
        replaced = re.findall(rf"^\s*(?:replace )?(k8s\.io/\S+) => \1 {tool.staging}$", theirs, re.MULTILINE)
        pinned = dict.fromkeys(sorted({*required, *replaced}), tool.staging) | pinned
    lines += [f"replace {name} => {name} {version}" for name, version in pinned.items()]
    lines += [f"replace {name} => {path} {version}" for name, path, version in tool.moved]
    return "\n".join(lines) + "\n"
