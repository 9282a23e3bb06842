"""Programs that a bare Debian lacks: installed by apt-get when we are root there, else named."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from hack.cluster.shell import ClusterError, log, run

# Program -> Debian package that has it.
PACKAGES = {
    "debootstrap": "debootstrap",
    "dockerd": "docker.io",
    "iptables": "iptables",
    "openssl": "openssl",
    "runc": "runc",
    "tar": "tar",
    "gcc": "gcc libc6-dev",
}
_SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin"


def find(program: str) -> str | None:
    """On PATH, or where Debian keeps what only root runs."""
    return shutil.which(program) or shutil.which(program, path=_SYSTEM_PATH)


def can_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def need(*programs: str) -> None:
    """Make sure that these programs are there."""
    missing = [program for program in programs if find(program) is None]
    if not missing:
        return
    wanted = " ".join(sorted({PACKAGES.get(program, program) for program in missing}))
    if not can_install():
        raise ClusterError(f"missing: {', '.join(missing)}. On Debian, as root: apt-get install {wanted}")
    log(f"installing {wanted}")
    install(wanted.split())
    still = [program for program in missing if find(program) is None]
    if still:
        raise ClusterError(f"apt-get installed {wanted}, but there is still no {', '.join(still)}")


def install(packages: list[str]) -> None:
    quiet: Mapping[str, str] = {"DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    if run(command, timeout=600, env=quiet, check=False).returncode != 0:
        # A fresh machine has no package lists, an old one stale ones.
        run(["apt-get", "update"], timeout=300, env=quiet)
        run(command, timeout=600, env=quiet)
