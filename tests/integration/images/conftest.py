"""Runs the images of the last `make images` as a restricted pod would."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from hack.images import build

RESTRICTED = [
    "--read-only",
    "--user=65532:65532",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--network=none",
]


@pytest.fixture(scope="session")
def references() -> dict[str, str]:
    return build.names()


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(references: dict[str, str]) -> Run:
    """`run("trainer", "python3", "-c", …)` runs a command in that image, where only /tmp is writable."""

    def call(
        image: str, *command: str, options: tuple[str, ...] = (), timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        given = ["docker", "run", "--rm", *RESTRICTED, "--tmpfs=/tmp:mode=1777", *options, "--entrypoint", command[0]]
        return subprocess.run(
            [*given, references[image], *command[1:]], capture_output=True, text=True, timeout=timeout, check=False
        )

    return call


@pytest.fixture(scope="session")
def inspect(references: dict[str, str]) -> Callable[[str], dict[str, Any]]:
    def call(image: str) -> dict[str, Any]:
        done = subprocess.run(
            ["docker", "image", "inspect", references[image]], capture_output=True, text=True, timeout=30, check=True
        )
        found: dict[str, Any] = json.loads(done.stdout)[0]
        return found

    return call
