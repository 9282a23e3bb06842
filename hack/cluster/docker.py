"""The few calls of Docker's command line that this package needs."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from hack.cluster import cache
from hack.cluster.shell import log, output, run, succeeds


def image_exists(name: str) -> bool:
    return succeeds(["docker", "image", "inspect", name], timeout=20)


def exists(container: str) -> bool:
    return succeeds(["docker", "container", "inspect", container], timeout=20)


def running(*containers: str) -> bool:
    """Returns whether all of these containers exist and run."""
    inspected = run(
        ["docker", "container", "inspect", "-f", "{{.State.Running}}", *containers], timeout=20, check=False
    )
    return inspected.stdout.split() == ["true"] * len(containers)


def build(tag: str, context: Path, dockerfile: str, *, timeout: float = 900) -> None:
    """Builds an image from this text with the classic builder; an engine without BuildKit's plugin has no other."""
    (context / "Dockerfile").write_text(dockerfile)
    log(f"building image {tag}")
    # On the host's network a build reaches every package registry that the machine's own resolver knows.
    command = ["docker", "build", "--network=host", "-t", tag, str(context)]
    run(command, timeout=timeout, env={"DOCKER_BUILDKIT": "0"})


def copy_program(program: Path, context: Path) -> None:
    """Copies a program into a build context, because the builder follows no links out of it."""
    try:
        os.link(program.resolve(), context / program.name)
    except OSError:
        shutil.copy2(program.resolve(), context / program.name)


def execute(container: str, command: Sequence[str], *, stdin: str | None = None, timeout: float = 60) -> str:
    return run(["docker", "exec", "-i", container, *command], stdin=stdin, timeout=timeout).stdout


def inspect(container: str, template: str) -> str:
    return output(["docker", "container", "inspect", "-f", template, container], timeout=20)


REMEMBERED = 24 * 3600


@functools.cache
def public_images() -> bool:
    """Returns whether public images can be pulled here.

    DTJ_PUBLIC_IMAGES=1 or 0 decides; otherwise one pull does, and the cache keeps its result for a day.
    """
    forced = os.environ.get("DTJ_PUBLIC_IMAGES")
    if forced in ("0", "1"):
        return forced == "1"
    remembered = cache.root() / "public-images"
    with contextlib.suppress(OSError):
        if time.time() - remembered.stat().st_mtime < REMEMBERED:
            return remembered.read_text() == "yes"
    # The local images prove nothing: one that was built here may carry a public name.
    found = succeeds(["docker", "pull", "-q", "docker.io/library/registry:3"], timeout=15)
    remembered.parent.mkdir(parents=True, exist_ok=True)
    remembered.write_text("yes" if found else "no")
    log(f"public images can{'' if found else 'not'} be pulled here (DTJ_PUBLIC_IMAGES=1 or 0 overrides)")
    return found
