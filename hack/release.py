"""`make release-wheels | release-images | release-chart`: each is a dry run until PUBLISH=1 is set.

A dry run prints every command and carries out those that stay on this machine only with --build. Nothing leaves the machine
without --publish, which asks for a clean tree and the tag of the version at HEAD. Standard library only.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hack.version import PROJECTS, stamped
from hack.version import version as tree_version

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build/release"
CHART = ROOT / "charts/dtj-operator"
PLATFORMS = "linux/amd64,linux/arm64"
CPU_TORCH = "https://download.pytorch.org/whl/cpu"
COMMAND_SECONDS = 7200.0


class ReleaseError(Exception):
    """The release can't be made; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command of a release."""

    command: tuple[str, ...]
    leaves: bool = False
    """It writes somewhere outside this machine."""


def version() -> str:
    """Returns the version of this tree. Raises ReleaseError where a file repeats another one."""
    stale = [str(path.relative_to(ROOT)) for path, text in stamped().items() if path.read_text("utf-8") != text]
    if stale:
        raise ReleaseError(f"VERSION is {tree_version()}, which these files do not have: {', '.join(stale)}; run make generate")
    return tree_version()


def wheels() -> Iterator[Step]:
    """The wheels, built from the tree and uploaded to the package index that uv is configured for."""
    uv, python = str(ROOT / ".venv/bin/uv"), str(ROOT / ".venv/bin/python")
    for project in PROJECTS:
        # The build back end is the locked one of .venv.
        build = (uv, "build", "--wheel", "--no-build-isolation", "--python", python)
        yield Step(command=(*build, "--out-dir", str(OUT), str(ROOT / project)))
    release = version()
    for project in PROJECTS:
        name = tomllib.loads((ROOT / project / "pyproject.toml").read_text())["project"]["name"].replace("-", "_")
        yield Step(command=(uv, "publish", str(OUT / f"{name}-{release}-py3-none-any.whl")), leaves=True)


def images(registry: str) -> Iterator[Step]:
    """Operator and trainer (with torch for CPUs, and for CUDA) for both architectures, with provenance and a list of contents."""
    release = version()
    for dockerfile, name, arguments in (
        ("Dockerfile", f"dtj-operator:{release}", ()),
        ("trainer-image/Dockerfile", f"dtj-trainer:{release}-cpu", ("--build-arg", f"TORCH_INDEX_URL={CPU_TORCH}")),
        ("trainer-image/Dockerfile", f"dtj-trainer:{release}-cuda", ()),
    ):
        build = ("docker", "buildx", "build", "--platform", PLATFORMS, "--sbom=true", "--provenance=true", *arguments)
        command = (*build, "-f", str(ROOT / dockerfile), "-t", f"{registry}/{name}", str(ROOT))
        yield Step(command=(*command[:3], "--output", "type=cacheonly", *command[3:]))
        yield Step(command=(*command[:3], "--push", *command[3:]), leaves=True)


def chart(registry: str) -> Iterator[Step]:
    """The chart as an OCI artifact."""
    yield Step(command=("helm", "lint", str(CHART)))
    yield Step(command=("helm", "package", str(CHART), "--destination", str(OUT)))
    package = OUT / f"dtj-operator-{version()}.tgz"
    yield Step(command=("helm", "push", str(package), f"oci://{registry}/charts"), leaves=True)


def require_release(release: str) -> None:
    """Raises ReleaseError unless the tree is clean and HEAD carries the tag of this version."""
    if _git("status", "--porcelain"):
        raise ReleaseError("the tree has changes that are not committed: what is published is what a commit holds")
    if f"v{release}" not in _git("tag", "--points-at", "HEAD").split():
        raise ReleaseError(f"HEAD does not carry the tag v{release}: git tag v{release}")


def carry_out(steps: Sequence[Step], *, build: bool, publish: bool) -> None:
    """Prints every command, and runs those that are asked for."""
    for step in steps:
        runs = publish if step.leaves else build or publish
        print(("run     " if runs else "dry run ") + shlex.join(step.command), flush=True)
        if runs:
            OUT.mkdir(parents=True, exist_ok=True)
            try:
                subprocess.run(step.command, check=True, timeout=COMMAND_SECONDS, cwd=ROOT)
            except FileNotFoundError as error:
                raise ReleaseError(f"{step.command[0]} is not installed") from error
            except subprocess.CalledProcessError as error:
                raise ReleaseError(f"exit code {error.returncode}: {shlex.join(step.command)}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one release. The exit code: 0, or 1 with the reason on standard error."""
    parser = argparse.ArgumentParser(prog="python3 hack/release.py", description=__doc__)
    parser.add_argument("what", choices=("wheels", "images", "chart"))
    parser.add_argument("--registry", default="", metavar="HOST/PATH", help="of images and chart, as in ghcr.io/you")
    parser.add_argument("--build", action="store_true", help="run what stays on this machine")
    parser.add_argument("--publish", action="store_true", help="run all of it")
    flags = parser.parse_args(arguments)
    try:
        release = version()
        if flags.publish:
            require_release(release)
        if flags.publish and flags.what != "wheels" and not flags.registry:
            raise ReleaseError("--registry (make: REGISTRY=…) says where images and chart go")
        registry = flags.registry or "REGISTRY"
        steps = wheels() if flags.what == "wheels" else images(registry) if flags.what == "images" else chart(registry)
        carry_out(list(steps), build=flags.build, publish=flags.publish)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False, timeout=60, cwd=ROOT)
    if done.returncode:
        raise ReleaseError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
