"""Programs that a bare Debian lacks: installed by apt-get for root, otherwise named in an error."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from hack.cluster.shell import ProvisionError, log, run

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
    """Returns a program's path, from PATH or from where Debian keeps the programs of root."""
    return shutil.which(program) or shutil.which(program, path=_SYSTEM_PATH)


def can_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def need(*programs: str) -> None:
    """Installs those of these programs that are missing. Raises ProvisionError if it can't."""
    missing = [program for program in programs if find(program) is None]
    if not missing:
        return
    wanted = " ".join(sorted({PACKAGES.get(program, program) for program in missing}))
    if not can_install():
        raise ProvisionError(f"missing: {', '.join(missing)}. On Debian, as root: apt-get install {wanted}")
    log(f"installing {wanted}")
    install(wanted.split())
    still = [program for program in missing if find(program) is None]
    if still:
        raise ProvisionError(f"apt-get installed {wanted}, but these are still missing: {', '.join(still)}")


def install(packages: list[str]) -> None:
    quiet: Mapping[str, str] = {"DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    if run(command, timeout=600, env=quiet, check=False).returncode != 0:
        # A fresh machine has no package lists, and an old one has stale lists.
        run(["apt-get", "update"], timeout=300, env=quiet)
        run(command, timeout=600, env=quiet)
