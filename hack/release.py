"""`make release-wheels | release-images | release-chart`: each is a dry run unless PUBLISH=1 is set.

A dry run prints every command. With --build, the commands whose results stay on this machine run. Nothing leaves the
machine without --publish, which requires a clean tree and the version's tag at HEAD. Standard library only.
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
    """The release is not possible; the message gives the reason."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command of a release."""

    command: tuple[str, ...]
    leaves: bool = False
    """Whether the command writes outside this machine."""


def version() -> str:
    """Returns the version of this tree. Raises ReleaseError if a file repeats another version."""
    stale = [str(path.relative_to(ROOT)) for path, text in stamped().items() if path.read_text("utf-8") != text]
    if stale:
        raise ReleaseError(
            f"VERSION is {tree_version()}, but not in these files: {', '.join(stale)}; run make generate"
        )
    return tree_version()


def wheels() -> Iterator[Step]:
    """Yields the steps that build the wheels and upload them to the package index that uv is configured for."""
    uv, python = str(ROOT / ".venv/bin/uv"), str(ROOT / ".venv/bin/python")
    for project in PROJECTS:
        # Use the locked build back end of .venv.
        build = (uv, "build", "--wheel", "--no-build-isolation", "--python", python)
        yield Step(command=(*build, "--out-dir", str(OUT), str(ROOT / project)))
    release = version()
    for project in PROJECTS:
        name = tomllib.loads((ROOT / project / "pyproject.toml").read_text())["project"]["name"].replace("-", "_")
        yield Step(command=(uv, "publish", str(OUT / f"{name}-{release}-py3-none-any.whl")), leaves=True)


def images(registry: str) -> Iterator[Step]:
    """Yields the steps for the images (torch for CPU and CUDA), on two architectures, with provenance and SBOM.

    An engine's image that computes on CPUs alone has no other tag.
    """
    release = version()
    cpu = ("--build-arg", f"TORCH_INDEX_URL={CPU_TORCH}")
    for dockerfile, name, arguments in (
        ("Dockerfile", f"dtj-operator:{release}", ()),
        ("trainer-image/Dockerfile", f"dtj-trainer:{release}-cpu", ("--target", "trainer", *cpu)),
        ("trainer-image/Dockerfile", f"dtj-trainer:{release}-cuda", ("--target", "trainer")),
        ("trainer-image/Dockerfile", f"dtj-trainer-deepspeed:{release}-cpu", ("--target", "deepspeed", *cpu)),
        ("trainer-image/Dockerfile", f"dtj-trainer-horovod:{release}-cpu", ("--target", "horovod", *cpu)),
        ("trainer-image/Dockerfile", f"dtj-trainer-jax:{release}-cpu", ("--target", "jax")),
        ("trainer-image/Dockerfile", f"dtj-trainer-ray:{release}-cpu", ("--target", "ray", *cpu)),
        ("trainer-image/Dockerfile", f"dtj-trainer-ray:{release}-cuda", ("--target", "ray")),
        ("trainer-image/Dockerfile", f"dtj-trainer-tensorflow:{release}-cpu", ("--target", "tensorflow")),
    ):
        build = ("docker", "buildx", "build", "--platform", PLATFORMS, "--sbom=true", "--provenance=true", *arguments)
        command = (*build, "-f", str(ROOT / dockerfile), "-t", f"{registry}/{name}", str(ROOT))
        yield Step(command=(*command[:3], "--output", "type=cacheonly", *command[3:]))
        yield Step(command=(*command[:3], "--push", *command[3:]), leaves=True)


def chart(registry: str) -> Iterator[Step]:
    """Yields the steps that push the chart as an OCI artifact."""
    yield Step(command=("helm", "lint", str(CHART)))
    yield Step(command=("helm", "package", str(CHART), "--destination", str(OUT)))
    package = OUT / f"dtj-operator-{version()}.tgz"
    yield Step(command=("helm", "push", str(package), f"oci://{registry}/charts"), leaves=True)


def require_release(release: str) -> None:
    """Raises ReleaseError unless the tree is clean and HEAD carries the tag of this version."""
    if _git("status", "--porcelain"):
        raise ReleaseError("the tree has uncommitted changes; commit them, because a release must match a commit")
    if f"v{release}" not in _git("tag", "--points-at", "HEAD").split():
        raise ReleaseError(f"HEAD does not carry the tag v{release}: git tag v{release}")


def execute(steps: Sequence[Step], *, build: bool, publish: bool) -> None:
    """Prints every command and runs the requested ones."""
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
    """Runs one release. Returns the exit code: 0, or 1 with the reason on standard error."""
    parser = argparse.ArgumentParser(prog="python3 -m hack.release", description=__doc__)
    parser.add_argument("what", choices=("wheels", "images", "chart"))
    parser.add_argument(
        "--registry", default="", metavar="HOST/PATH", help="where images and chart go, for example ghcr.io/you"
    )
    parser.add_argument("--build", action="store_true", help="run the commands whose results stay on this machine")
    parser.add_argument("--publish", action="store_true", help="run all commands")
    flags = parser.parse_args(arguments)
    try:
        release = version()
        if flags.publish:
            require_release(release)
        if flags.publish and flags.what != "wheels" and not flags.registry:
            raise ReleaseError("--registry (make: REGISTRY=…) is missing: where images and chart go")
        registry = flags.registry or "REGISTRY"
        steps = wheels() if flags.what == "wheels" else images(registry) if flags.what == "images" else chart(registry)
        execute(list(steps), build=flags.build, publish=flags.publish)
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
