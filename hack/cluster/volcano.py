"""Volcano's programs, built from a checkout of its repository: module proxies do not serve its module.

VOLCANO_SOURCE names the checkout, of `git clone --depth 1 https://github.com/volcano-sh/volcano`. Nothing is written
into it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from functools import partial
from pathlib import Path

from hack.cluster import cache, toolchain
from hack.cluster.gobuild import BUILD_TIMEOUT
from hack.cluster.shell import ProvisionError, log, run
from hack.cluster.versions import KUBERNETES

# Raise this number when a change of this file changes the programs.
RECIPE = 1


def source() -> Path:
    """Returns the checkout.

    Raises:
        ProvisionError: VOLCANO_SOURCE names none.
    """
    named = os.environ.get("VOLCANO_SOURCE", "")
    folder = Path(named).expanduser().resolve()
    if not named or not (folder / "cmd/scheduler").is_dir():
        raise ProvisionError(
            f"VOLCANO_SOURCE ({named or 'not set'}) must name a checkout of Volcano; "
            "create one by: git clone --depth 1 https://github.com/volcano-sh/volcano"
        )
    return folder


def program(name: str) -> Path:
    """Returns the path of a program in the cache; builds it if it is missing.

    Args:
        name: a folder of cmd/ in its repository: `scheduler` or `controller-manager`.
    """
    sums = hashlib.sha256((source() / "go.sum").read_bytes()).hexdigest()
    key = cache.key(RECIPE, platform.system(), platform.machine(), sums, KUBERNETES)
    return cache.entry("go", f"vc-{name}-{key}", partial(_build, name)) / f"vc-{name}"


def at_our_patch_version(go_mod: str) -> str:
    """Returns a go.mod with Kubernetes at the patch version of the cluster's programs, so that Go compiles it once.

    Another minor version stays as it is.
    """
    _, minor, patch = KUBERNETES.split(".")
    return re.sub(rf"(k8s\.io/.* v[01]\.{minor})\.\d+\b", rf"\g<1>.{patch}", go_mod)


def _build(name: str, folder: Path) -> None:
    checkout = source()
    log(f"building Volcano's {name} (once; kept in {cache.root()})")
    (folder / "go.mod").write_text(at_our_patch_version((checkout / "go.mod").read_text()))
    (folder / "go.sum").write_bytes((checkout / "go.sum").read_bytes())
    options = [f"-modfile={folder}/go.mod", "-mod=mod", "-trimpath", "-tags=", "-ldflags=-s -w"]
    run(
        ["nice", "-n", "10", toolchain.go(), "build", *options, "-o", folder / f"vc-{name}", f"./cmd/{name}"],
        timeout=BUILD_TIMEOUT,
        cwd=checkout,
        env={"CGO_ENABLED": "0", "GOWORK": "off"},
    )
