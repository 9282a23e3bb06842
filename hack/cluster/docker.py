"""The few things that are asked of a Docker engine, as plain calls of its command line."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Sequence
from pathlib import Path

from hack.cluster.shell import log, output, run, succeeds


def image_exists(name: str) -> bool:
    return succeeds(["docker", "image", "inspect", name], timeout=20)


def running(container: str) -> bool:
    try_it = run(["docker", "container", "inspect", "-f", "{{.State.Running}}", container], timeout=20, check=False)
    return try_it.stdout.strip() == "true"


def build(tag: str, context: Path, dockerfile: str, *, timeout: float = 900) -> None:
    """Build from this text. The classic builder: an engine without BuildKit's plugin has no other."""
    (context / "Dockerfile").write_text(dockerfile)
    log(f"building image {tag}")
    # The host's network: a package registry that is reached through the machine's own resolver is reached so here too.
    command = ["docker", "build", "--network=host", "-t", tag, str(context)]
    run(command, timeout=timeout, env={"DOCKER_BUILDKIT": "0"})


def execute(container: str, command: Sequence[str], *, stdin: str | None = None, timeout: float = 60) -> str:
    return run(["docker", "exec", "-i", container, *command], stdin=stdin, timeout=timeout).stdout


def inspect(container: str, template: str) -> str:
    return output(["docker", "container", "inspect", "-f", template, container], timeout=20)


@functools.cache
def public_images() -> bool:
    """Whether public images can be pulled here: DTJ_PUBLIC_IMAGES=1 or 0 says it, else one small pull in a few seconds."""
    forced = os.environ.get("DTJ_PUBLIC_IMAGES")
    if forced in ("0", "1"):
        return forced == "1"
    probe = "registry.k8s.io/pause:3.10"
    return image_exists(probe) or succeeds(["docker", "pull", "-q", probe], timeout=15)


def labels(image: str) -> dict[str, str]:
    found = json.loads(output(["docker", "image", "inspect", "-f", "{{json .Config.Labels}}", image], timeout=20))
    return dict(found or {})
